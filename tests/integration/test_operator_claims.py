"""Claims, slices and classes on a real API server: what a person does wrong is said, what is freed is free."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from egpu import names
from egpu.kube import Object
from egpu.resources import CLAIMS, CLASSES, EVENTS, NODE_CARDS, NODES, PODS, SLICES
from egpu_operator.app import Operator
from localcluster import LocalCluster
from operator_stand import Stand, claim, gpu_class, pod
from operator_stand.objects import card
from operator_stand.stand import stand_on, until

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("operator")]


@pytest.fixture
async def stand(control_plane: LocalCluster, request: pytest.FixtureRequest) -> AsyncIterator[Stand]:
    async with stand_on(control_plane.kubeconfig, request.node.name) as made:
        yield made


@pytest.fixture
async def operator(stand: Stand) -> AsyncIterator[Operator]:
    async with stand.operator() as made:
        yield made


@pytest.fixture
async def agent(stand: Stand) -> AsyncIterator[None]:
    task = asyncio.create_task(stand.agent())
    yield
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def filtered(operator: Operator, raw: Object, node: str) -> str:
    """Why the pod does not fit the node; empty if it does."""
    answer = await operator.extender.filter({"Pod": raw, "NodeNames": [node]})
    return str(answer["FailedAndUnresolvableNodes"].get(node, ""))


async def bind(operator: Operator, raw: Object, node: str) -> str:
    meta = raw["metadata"]
    args = {"PodNamespace": meta["namespace"], "PodName": meta["name"], "PodUID": meta["uid"], "Node": node}
    return str((await operator.extender.bind(args))["Error"])


async def nothing_left(stand: Stand, node: str) -> None:
    async def probe() -> bool:
        return not await stand.slices() and not await stand.bookings(node)

    await until("no slice and no booking", probe)


async def phase(stand: Stand, name: str, wanted: str) -> Object:
    async def probe() -> Object | None:
        raw = await stand.kube.get(SLICES, name)
        return raw if raw.get("status", {}).get("phase") == wanted else None

    return await until(f"slice {name} {wanted}", probe)


async def test_the_class_comes_after_the_claim(stand: Stand) -> None:
    await stand.node("a")
    await stand.create(claim("one", gpu_class=stand.name))
    assert stand.name in await stand.reason("one", "ClassNotFound")
    events, _ = await stand.kube.list(EVENTS, namespace=stand.namespace)
    assert "ClassNotFound" in {event["reason"] for event in events}
    await stand.create(gpu_class(stand.name))
    await stand.phase("one", "Bound")


async def test_more_than_any_card_has(stand: Stand) -> None:
    node = await stand.node("a", card("x"), card("y"))
    await stand.create(gpu_class(stand.name))
    await stand.create(claim("one", gpu_class=stand.name, memory="20Gi"))
    assert f"{node}: 2 cards, largest free 16 GiB of 20 GiB asked" in await stand.reason("one", "NoRoom")
    await stand.report(node, card("x", memory=24 << 30), card("y"))
    await stand.phase("one", "Bound")


async def test_the_example_with_prefixed_keys_on_one_card(stand: Stand) -> None:
    """Rows 118 to 122: two claims on one card, Retain leaves both Released, cleared they are Available."""
    node = await stand.node("a", card("x", memory=8 << 30))
    await stand.create(gpu_class(stand.name, reclaim="Retain"))
    for name in ("one", "two"):
        body = claim(name, gpu_class=stand.name)
        prefix = names.DEFAULT_PROVISIONER
        body["spec"]["resources"]["requests"] = {f"{prefix}/gpu-core": 10, f"{prefix}/gpu-memory": 4}
        await stand.create(body)
    bound = [await stand.phase(name, "Bound") for name in ("one", "two")]
    assert {raw["status"]["cards"][0]["uuid"] for raw in bound} == {"x"}
    for name in ("one", "two"):
        await stand.kube.delete(CLAIMS, name, namespace=stand.namespace)
    for raw in bound:
        await phase(stand, raw["status"]["egpuName"], "Released")
    assert len((await stand.bookings(node))["x"]) == 2
    first = bound[0]["status"]["egpuName"]
    await stand.kube.patch_merge(SLICES, first, {"spec": {"claimRef": None}})
    await phase(stand, first, "Available")
    await stand.create(claim("three", gpu_class=stand.name, core=10, egpu=first))
    assert (await stand.phase("three", "Bound"))["status"]["egpuName"] == first


@pytest.mark.usefixtures("agent")
async def test_a_claim_deleted_while_used_waits_for_the_pod(stand: Stand, operator: Operator) -> None:
    node = await stand.node("a")
    await stand.create(gpu_class(stand.name))
    await stand.create(claim("one", gpu_class=stand.name))
    await stand.phase("one", "Bound")
    raw = await stand.create(pod("user", {"main": "one"}))
    other = await stand.create(pod("other", {"main": "one"}))
    assert await bind(operator, raw, node) == ""
    assert f"in use by pod {stand.namespace}/user" in await filtered(operator, other, node)
    assert "in use by pod" in await bind(operator, other, node)
    await stand.kube.delete(CLAIMS, "one", namespace=stand.namespace)
    assert "in use by pod" in await stand.reason("one", "InUse", kind="Deletable")
    assert await stand.slices()
    await stand.kube.delete(PODS, "user", namespace=stand.namespace)
    await nothing_left(stand, node)
    assert await stand.claim("one") is None


async def test_a_pod_that_ended_gives_its_slice_to_the_next(stand: Stand, operator: Operator) -> None:
    """Not before the agent has confirmed that nothing of it is left."""
    node = await stand.node("a")
    await stand.create(gpu_class(stand.name, mode="WaitForFirstConsumer"))
    await stand.create(claim("one", gpu_class=stand.name))
    await stand.reason("one", "WaitForFirstConsumer")
    raw = await stand.create(pod("first", {"main": "one"}))
    assert await bind(operator, raw, node) == ""
    await stand.kube.patch_merge(
        PODS, "first", {"status": {"phase": "Failed"}}, namespace=stand.namespace, subresource="status"
    )
    second = await stand.create(pod("second", {"main": "one"}))

    async def asked_back() -> bool:
        [own] = await stand.slices()
        return bool(own["spec"]["consumer"]["releasing"])

    await until("asked back", asked_back)
    assert "being cleaned up" in await filtered(operator, second, node)
    agent = asyncio.create_task(stand.agent())

    async def free() -> bool:
        return not await filtered(operator, second, node)

    await until("free for the next pod", free)
    assert await bind(operator, second, node) == ""
    agent.cancel()


async def test_bad_claims_of_a_pod(stand: Stand, operator: Operator) -> None:
    node = await stand.node("a")
    raw = await stand.create(pod("one", {"main": "nowhere"}))
    assert "nowhere does not exist" in await filtered(operator, raw, node)
    await stand.create(claim("classless", gpu_class=f"{stand.name}-unknown"))
    await stand.reason("classless", "ClassNotFound")
    raw = await stand.create(pod("two", {"main": "classless"}))
    assert f"EGPUClass {stand.name}-unknown does not exist" in await filtered(operator, raw, node)


async def test_a_default_class_is_filled_in(stand: Stand) -> None:
    await stand.node("a")
    await stand.create(claim("one"))
    assert "is-default-class" in await stand.reason("one", "NoClass")
    await stand.create(gpu_class(stand.name, default=True))
    assert (await stand.phase("one", "Bound"))["spec"]["egpuClassName"] == stand.name


async def test_a_class_deleted_while_used(stand: Stand) -> None:
    await stand.node("a")
    await stand.create(gpu_class(stand.name))
    await stand.create(claim("one", gpu_class=stand.name))
    await stand.phase("one", "Bound")

    async def protected() -> bool:
        raw = await stand.kube.get(CLASSES, stand.name)
        return names.FINALIZER_CLASS in raw["metadata"].get("finalizers", ())

    await until("class protected", protected)
    await stand.kube.delete(CLASSES, stand.name)

    async def said() -> bool:
        events, _ = await stand.kube.list(EVENTS, namespace="default")
        return any(stand.name == e["regarding"]["name"] and f"{stand.namespace}/one" in e["note"] for e in events)

    await until("an event says which claim", said)
    await stand.kube.delete(CLAIMS, "one", namespace=stand.namespace)

    async def gone() -> bool:
        return await stand.kube.find(CLASSES, stand.name) is None

    await until("class gone", gone)


def static(stand: Stand, node: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": names.API_VERSION,
        "kind": "ElasticGPU",
        "metadata": {"name": f"{stand.name}-static"},
        "spec": {"nodeName": node, "cards": [{"uuid": "x", "core": 50, "memory": "8Gi"}], **spec},
    }


async def test_an_admins_slice_is_booked_and_taken_by_the_claim_it_is_promised_to(stand: Stand) -> None:
    node = await stand.node("a", card("x"))
    await stand.create(gpu_class(stand.name))
    promise = {"namespace": stand.namespace, "name": "one"}
    name = (await stand.create(static(stand, node, claimRef=promise)))["metadata"]["name"]
    await phase(stand, name, "Available")
    assert list((await stand.bookings(node))["x"]) == [name]
    await stand.create(claim("other", gpu_class=stand.name, core=10, memory="1Gi", egpu=name))
    assert f"{stand.namespace}/one" in await stand.reason("other", "SliceTaken")
    await stand.create(claim("one", gpu_class=stand.name))
    assert (await stand.phase("one", "Bound"))["status"]["egpuName"] == name
    await phase(stand, name, "Bound")


async def test_a_node_out_of_service_is_freed_without_its_agent(stand: Stand) -> None:
    node = await stand.node("a")
    await stand.create(gpu_class(stand.name))
    await stand.create(claim("one", gpu_class=stand.name))
    await stand.phase("one", "Bound")
    await stand.kube.delete(CLAIMS, "one", namespace=stand.namespace)

    async def deleting() -> bool:
        return all(raw["metadata"].get("deletionTimestamp") for raw in await stand.slices())

    await until("slice being deleted", deleting)
    assert await stand.bookings(node)
    taint = {"key": names.TAINT_OUT_OF_SERVICE, "value": "nodeshutdown", "effect": "NoExecute"}
    await stand.kube.patch_merge(NODES, node, {"spec": {"taints": [taint]}})
    await nothing_left(stand, node)


async def test_a_booking_without_a_slice_is_swept_after_a_minute(stand: Stand, operator: Operator) -> None:
    node = await stand.node("a", card("x"))
    stamps = {"old": datetime.now(UTC) - timedelta(minutes=2), "new": datetime.now(UTC)}
    slices = {
        f"{stand.name}-{age}": {"core": 10, "memory": "1Gi", "time": moment.strftime("%Y-%m-%dT%H:%M:%SZ")}
        for age, moment in stamps.items()
    }
    await stand.kube.patch_merge(NODE_CARDS, node, {"spec": {"bookings": {"x": {"sequence": 7, "slices": slices}}}})

    async def seen() -> bool:
        return bool(operator.world.booked_on(f"{stand.name}-new"))

    await until("operator sees the bookings", seen)
    await operator.sweep.once()
    assert list((await stand.bookings(node))["x"]) == [f"{stand.name}-new"]
    raw = await stand.kube.get(NODE_CARDS, node)
    assert raw["spec"]["bookings"]["x"]["sequence"] == 8
    assert raw["spec"]["booked"] == {"core": 10, "memory": "1Gi", "slices": 1}


async def test_two_operators_do_not_need_each_other_to_be_right(stand: Stand, operator: Operator) -> None:
    """Another's slice of the same claim wins by its name; what the loser has booked elsewhere is given back."""
    nodes = [await stand.node("a"), await stand.node("b")]
    await stand.create(gpu_class(stand.name))
    async with stand.operator():
        await asyncio.gather(*(stand.create(claim(f"c{i}", gpu_class=stand.name)) for i in range(8)))
        for i in range(8):
            await stand.phase(f"c{i}", "Bound")
        found = await stand.slices()
        assert len(found) == 8

        async def exact() -> bool:
            await operator.sweep.once()
            held = [name for node in nodes for card in (await stand.bookings(node)).values() for name in card]
            return sorted(held) == sorted(raw["metadata"]["name"] for raw in found)

        await until("every slice booked once", exact)
