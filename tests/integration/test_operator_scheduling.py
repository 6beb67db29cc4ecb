"""The extender under an unmodified kube-scheduler."""

import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from egpu import names
from egpu.kube import Object
from egpu.resources import PODS
from localcluster import LocalCluster
from operator_stand import Stand, claim, gpu_class, pod
from operator_stand.objects import card
from operator_stand.scheduler import Extenders, scheduler
from operator_stand.stand import stand_on, until

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("extenders")]


@pytest.fixture
async def stand(control_plane: LocalCluster, request: pytest.FixtureRequest) -> AsyncIterator[Stand]:
    async with stand_on(control_plane.kubeconfig, request.node.name) as made:
        yield made


@pytest.fixture
async def extenders(stand: Stand, control_plane: LocalCluster, tmp_path: Path) -> AsyncIterator[Extenders]:
    found = Extenders()
    async with scheduler(kubeconfig=control_plane.kubeconfig, folder=tmp_path, extenders=found), stand.operator() as op:
        found.now = op.extender
        yield found


async def bound(stand: Stand, name: str) -> Object:
    async def probe() -> Object | None:
        raw = await stand.kube.get(PODS, name, namespace=stand.namespace)
        return raw if raw["spec"].get("nodeName") else None

    return await until(f"pod {name} bound", probe)


async def unschedulable(stand: Stand, name: str, words: str) -> None:
    async def probe() -> bool:
        raw = await stand.kube.get(PODS, name, namespace=stand.namespace)
        return any(words in condition.get("message", "") for condition in raw["status"].get("conditions", ()))

    await until(f"pod {name} refused with {words!r}", probe)


async def test_a_pod_is_bound_with_its_claim(stand: Stand) -> None:
    node = await stand.node("a")
    await stand.create(gpu_class(stand.name, mode="WaitForFirstConsumer"))
    await stand.create(claim("one", gpu_class=stand.name))
    await stand.reason("one", "WaitForFirstConsumer")
    made = await stand.create(pod("one", {"main": "one"}))
    raw = await bound(stand, "one")
    assert raw["spec"]["nodeName"] == node
    [own] = await stand.slices()
    assert raw["metadata"]["annotations"][f"{names.ANNOTATION_SLICE_PREFIX}main"] == own["metadata"]["name"]
    assert own["spec"]["consumer"] == {
        "podUID": made["metadata"]["uid"], "podName": "one", "podNamespace": stand.namespace,
        "containers": ["main"], "releasing": False,
    }  # fmt: skip
    assert (await stand.phase("one", "Bound"))["status"]["egpuName"] == own["metadata"]["name"]


WAKERS = ("room given back", "claim created", "card healed")


@pytest.mark.parametrize("waker", WAKERS)
async def test_a_waiting_pod_is_tried_again_at_once(stand: Stand, waker: str) -> None:
    """kube-scheduler by itself would look again after five minutes."""
    health = "Unhealthy" if waker == "card healed" else "Healthy"
    uuid = f"GPU-{stand.name}"
    node = await stand.node("a", card(uuid, health=health))
    await stand.create(gpu_class(stand.name, mode="WaitForFirstConsumer"))
    if waker == "room given back":
        await stand.create(gpu_class(f"{stand.name}-now"))
        await stand.create(claim("hog", gpu_class=f"{stand.name}-now", memory="14Gi"))
        await stand.phase("hog", "Bound")
    if waker != "claim created":
        await stand.create(claim("one", gpu_class=stand.name))
        await stand.reason("one", "WaitForFirstConsumer")
    await stand.create(pod("one", {"main": "one"}))
    words = {
        "room given back": "not enough GPU memory",
        "claim created": "does not exist",
        "card healed": "unhealthy",
    }[waker]
    await unschedulable(stand, "one", words)
    begun = time.monotonic()
    if waker == "room given back":
        await stand.give_back("hog")
    elif waker == "claim created":
        await stand.create(claim("one", gpu_class=stand.name))
    else:
        await stand.report(node, card(uuid))
    await bound(stand, "one")
    assert time.monotonic() - begun < 5
