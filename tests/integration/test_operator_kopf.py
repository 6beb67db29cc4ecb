"""What kopf does to the objects it watches: nothing."""

import pytest

from egpu.resources import CLAIMS
from egpu_operator.watch import KopfWatch
from egpu_operator.world import World
from localcluster import LocalCluster
from operator_stand import claim
from operator_stand.stand import stand_on, until

pytestmark = pytest.mark.integration


async def test_kopf_writes_nothing(control_plane: LocalCluster) -> None:
    """After create, update and re-list the objects are exactly as their user's last write left them."""
    async with stand_on(control_plane.kubeconfig, "kopf") as stand:
        world = World(stand.kube)
        watch = KopfWatch(kube=stand.kube, claims=world.claims, classes=world.classes)
        await watch.start()
        written = {}
        for number in range(20):
            name = f"c{number}"
            await stand.create(claim(name))
            body = {"metadata": {"labels": {"touched": "yes"}}}
            raw = await stand.kube.patch_merge(CLAIMS, name, body, namespace=stand.namespace)
            written[name] = raw["metadata"]["resourceVersion"]

        async def delivered() -> bool:
            held = [c for c in world.claims.values() if c.metadata.namespace == stand.namespace]
            return {c.metadata.name: c.metadata.resource_version for c in held} == written

        await until("every last write delivered", delivered)
        await watch.stop()
        listed, _ = await stand.kube.list(CLAIMS, namespace=stand.namespace)
        assert {raw["metadata"]["name"]: raw["metadata"]["resourceVersion"] for raw in listed} == written
        assert not any(raw["metadata"].get("finalizers") or raw["metadata"].get("annotations") for raw in listed)
