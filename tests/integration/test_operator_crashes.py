"""The operator killed at every write between a claim and its bound pod: all converges, nothing twice, none leaked."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from egpu import names
from egpu.kube import Object
from egpu.resources import CLAIMS, PODS
from egpu_operator import provision
from egpu_operator.app import Operator
from localcluster import LocalCluster
from operator_stand import Stand, claim, gpu_class, pod
from operator_stand.process import started
from operator_stand.stand import stand_on, until

pytestmark = pytest.mark.integration

NOW, LATER = "Immediate", "WaitForFirstConsumer"
IMMEDIATE = (provision.STEP_PREPARED, provision.STEP_BOOKED, provision.STEP_SLICE, provision.STEP_CLAIM)
WITH_POD = (provision.STEP_BOOKED, provision.STEP_SLICE, provision.STEP_CLAIM, provision.STEP_POD)
AFTERWARDS = (provision.STEP_CONSUMER, provision.STEP_POD)


@pytest.fixture
async def stand(control_plane: LocalCluster, request: pytest.FixtureRequest) -> AsyncIterator[Stand]:
    async with stand_on(control_plane.kubeconfig, request.node.name) as made:
        yield made


async def dies(process: asyncio.subprocess.Process) -> None:
    async with asyncio.timeout(20):
        assert await process.wait() == -9


async def consistent(stand: Stand, node: str, *, slices: int) -> list[Object]:
    """Exactly so many slices, each booked exactly as it is written, and nothing else booked."""

    async def probe() -> list[Object] | None:
        found = await stand.slices()
        booked = await stand.bookings(node)
        wanted = {
            (share["uuid"], raw["metadata"]["name"]): (share["core"], share["memory"])
            for raw in found
            for share in raw["spec"]["cards"]
        }
        there = {
            (uuid, name): (entry["core"], entry["memory"])
            for uuid, held in booked.items()
            for name, entry in held.items()
        }
        return found or [{}] if len(found) == slices and wanted == there else None

    return await until(f"{slices} slices, booked as written", probe)


def bind_line(raw: Object, node: str) -> str:
    meta = raw["metadata"]
    return f"{meta['namespace']}/{meta['name']}/{meta['uid']}/{node}"


async def bind(operator: Operator, raw: Object, node: str) -> None:
    """What kube-scheduler does: again until it works."""
    meta = raw["metadata"]
    args = {"PodNamespace": meta["namespace"], "PodName": meta["name"], "PodUID": meta["uid"], "Node": node}

    async def probe() -> bool:
        answer = await operator.extender.filter({"Pod": raw, "NodeNames": [node]})
        assert answer["NodeNames"] == [node], answer
        return not (await operator.extender.bind(args))["Error"]

    await until(f"pod {meta['name']} bound", probe)


@pytest.mark.parametrize("step", IMMEDIATE)
async def test_killed_while_a_claim_is_bound(stand: Stand, control_plane: LocalCluster, step: str) -> None:
    node = await stand.node("a")
    async with started(kubeconfig=control_plane.kubeconfig, die_at=step) as process:
        await stand.create(gpu_class(stand.name))
        await stand.create(claim("one", gpu_class=stand.name))
        await dies(process)
    async with stand.operator():
        raw = await stand.phase("one", "Bound")
        [own] = await consistent(stand, node, slices=1)
        assert own["metadata"]["name"] == names.slice_name(raw["metadata"]["uid"])
        assert own["spec"]["claimRef"]["uid"] == raw["metadata"]["uid"]


@pytest.mark.parametrize(("mode", "step"), [*((LATER, s) for s in WITH_POD), *((NOW, s) for s in AFTERWARDS)])
async def test_killed_while_a_pod_is_bound(stand: Stand, control_plane: LocalCluster, step: str, mode: str) -> None:
    """Two claims in one pod: both are bound, once."""
    node = await stand.node("a")
    raw = await prepared(stand, mode)
    async with started(kubeconfig=control_plane.kubeconfig, die_at=step, bind=bind_line(raw, node)) as process:
        await dies(process)
    async with stand.operator() as operator:
        await bind(operator, raw, node)
        for name in ("one", "two"):
            assert (await stand.phase(name, "Bound"))["status"]["node"] == node
        found = await consistent(stand, node, slices=2)
        assert {own["spec"]["consumer"]["podUID"] for own in found} == {raw["metadata"]["uid"]}
        there = await stand.kube.get(PODS, "pod", namespace=stand.namespace)
        assert there["spec"]["nodeName"] == node


@pytest.mark.parametrize("step", WITH_POD)
async def test_killed_and_all_is_deleted_meanwhile(stand: Stand, control_plane: LocalCluster, step: str) -> None:
    """Pod and claims go while no operator runs: nothing stays booked, no slice stays."""
    node = await stand.node("a")
    raw = await prepared(stand, LATER)
    async with started(kubeconfig=control_plane.kubeconfig, die_at=step, bind=bind_line(raw, node)) as process:
        await dies(process)
    await stand.kube.delete(PODS, "pod", namespace=stand.namespace)
    for name in ("one", "two"):
        await stand.kube.delete(CLAIMS, name, namespace=stand.namespace)
    agent = asyncio.create_task(stand.agent())
    async with stand.operator() as operator:

        async def swept() -> bool:
            await operator.sweep.once(age=timedelta(0))
            return not await stand.bookings(node) and not await stand.slices()

        await until("nothing left", swept)
        assert not await stand.claim("one")
    agent.cancel()


async def prepared(stand: Stand, mode: str) -> Object:
    """A pod with two claims, unbound or bound already, as an operator before has left them."""
    async with stand.operator():
        await stand.create(gpu_class(stand.name, mode=mode))
        for name in ("one", "two"):
            await stand.create(claim(name, gpu_class=stand.name))
        for name in ("one", "two"):
            await (stand.phase(name, "Bound") if mode == NOW else stand.reason(name, LATER))
    return await stand.create(pod("pod", {"a": "one", "b": "two"}))


async def test_two_leaders_and_the_last_room(stand: Stand, control_plane: LocalCluster) -> None:
    """Twelve claims for a card that holds four, two leaders at work on all of them."""
    node = await stand.node("a")
    kubeconfig = control_plane.kubeconfig
    async with started(kubeconfig=kubeconfig, identity="a"), started(kubeconfig=kubeconfig, identity="b"):
        await stand.create(gpu_class(stand.name))
        await asyncio.gather(*(stand.create(claim(f"c{i}", gpu_class=stand.name)) for i in range(12)))
        for i in range(12):
            await decided(stand, f"c{i}")
        await consistent(stand, node, slices=4)
    [card] = (await stand.bookings(node)).values()
    assert sum(entry["core"] for entry in card.values()) == 100


async def decided(stand: Stand, name: str) -> None:
    async def probe() -> bool:
        raw = await stand.claim(name) or {}
        found = raw.get("status", {}).get("conditions", ())
        return any(condition["reason"] in ("Bound", "NoRoom") for condition in found)

    await until(f"claim {name} decided", probe)
