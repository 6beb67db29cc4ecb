"""What kopf does to the objects it watches: nothing."""

import asyncio
import dataclasses

import pytest

from egpu.kube import Access, Kube
from egpu.resources import CLAIMS
from egpu_operator import watch as watch_module
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


async def test_a_deaf_kopf_is_noticed(control_plane: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """kopf whose requests are refused goes on as if nothing were; whoever waits for it is told."""
    monkeypatch.setattr(watch_module, "FIRST_CHECK", 1.0)
    monkeypatch.setattr(watch_module, "GRACE", 1.0)
    async with stand_on(control_plane.kubeconfig, "deaf") as stand:

        async def nobody() -> Access:
            known = await Kube.access(stand.kube)
            return dataclasses.replace(known, token="nobody", certificate_file=None, key_file=None)  # noqa: S106

        monkeypatch.setattr(stand.kube, "access", nobody)
        world = World(stand.kube)
        watch = KopfWatch(kube=stand.kube, claims=world.claims, classes=world.classes)
        await watch.start()
        await stand.create(claim("unheard"))
        with pytest.raises(RuntimeError, match="no longer watches elasticgpuclaims"):
            await asyncio.wait_for(watch.run(), timeout=30)
        assert world.claims.get(f"{stand.namespace}/unheard") is not None
        await watch.stop()
