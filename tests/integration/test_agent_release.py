"""Slices taken back, limits changed, the agent ended between any two steps: what is left everywhere."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import grpc.aio
import pytest

from egpu import names, resources
from egpu_agent.crash import POINTS
from egpu_agent_testing import CARD, Bench, card, condition, pod_uid
from localcluster import LocalCluster

pytestmark = pytest.mark.integration

SLICE = names.TICKET


@pytest.fixture
async def bench(control_plane: LocalCluster) -> AsyncIterator[Bench]:
    async with Bench.open(control_plane.kubeconfig) as found:
        await found.kubelet.start()
        yield found


@pytest.fixture
async def served(bench: Bench) -> Bench:
    await bench.start_agent()
    await bench.ready()
    return bench


async def _attach(bench: Bench, name: str = "s") -> tuple[str, list[str], str]:
    """A slice, its pod and its container up to the point where the runtime would take over."""
    pod, ids = pod_uid(), bench.next_ticket()
    await bench.create_slice(name, pod=pod)
    device = await bench.kubelet.allocate(pod, "main", SLICE, ids)
    await bench.kubelet.pre_start(SLICE, ids)
    return pod, ids, device


async def _released(bench: Bench, name: str) -> str:
    found = await bench.slice(name)
    return str(((found or {}).get("status") or {}).get("releasedPodUID") or "")


async def _reason(bench: Bench, name: str = "s") -> str:
    return str(condition(await bench.slice(name)).get("reason", ""))


def _clean(bench: Bench) -> bool:
    return not bench.specs() and not bench.slice_folders() and not bench.tickets()


async def test_release_is_reported_only_when_the_processes_are_gone(served: Bench) -> None:
    pod, ids, _ = await _attach(served)
    served.run_process(100, pod, "pause")
    served.run_process(101, pod)
    await served.patch("s", {"consumer": {"releasing": True}})
    await served.until("the spec is gone", lambda: not served.specs())
    with pytest.raises(grpc.aio.AioRpcError, match="being released"):
        await served.kubelet.pre_start(SLICE, ids)
    served.end_process(101)
    await served.until("the folder stays", served.slice_folders)
    assert await _released(served, "s") == ""
    served.end_process(100)
    await served.until("released", lambda: _released(served, "s"))
    assert await _released(served, "s") == pod
    assert _clean(served)


async def test_memory_that_the_driver_still_frees_holds_the_release(served: Bench) -> None:
    pod, _, _ = await _attach(served)
    served.run_process(101, pod)
    served.set_cards(cards=[card()], processes=[[CARD, 101, 1 << 30]])
    await served.patch("s", {"consumer": {"releasing": True}})
    await served.until("the spec is gone", lambda: not served.specs())
    served.end_process(101)
    await asyncio.wait([asyncio.create_task(asyncio.sleep(1.5))])
    assert await _released(served, "s") == "", "the card still lists the process"
    served.set_cards(cards=[card()])
    await served.until("released", lambda: _released(served, "s"))


async def test_a_long_wait_says_for_whom(served: Bench) -> None:
    pod, _, _ = await _attach(served)
    served.run_process(4242, pod, "stubborn")
    await served.patch("s", {"consumer": {"releasing": True}})
    await served.until("the condition says so", lambda: _is(served, "Releasing"), seconds=30)
    assert "process 4242 (stubborn)" in condition(await served.slice("s"))["message"]
    served.end_process(4242)
    await served.until("released", lambda: _released(served, "s"))
    assert await _reason(served) == "Usable"


async def _is(bench: Bench, reason: str) -> bool:
    return await _reason(bench) == reason


async def test_a_deleted_slice_goes_when_its_processes_have(served: Bench) -> None:
    pod, _, _ = await _attach(served)
    served.run_process(101, pod)
    await served.kube.delete(resources.SLICES, f"{served.node}-s")
    await served.until("the spec is gone", lambda: not served.specs())
    assert await served.slice("s") is not None
    served.end_process(101)
    await served.until("the slice is gone", lambda: _gone(served, "s"))
    assert _clean(served)


async def _gone(bench: Bench, name: str) -> bool:
    return await bench.slice(name) is None


async def test_a_slice_that_vanished_leaves_nothing(served: Bench) -> None:
    _, _, device = await _attach(served)
    await served.kube.delete(resources.SLICES, f"{served.node}-s")
    with contextlib.suppress(Exception):
        await served.kube.patch_merge(resources.SLICES, f"{served.node}-s", {"metadata": {"finalizers": None}})
    await served.until("all is clean", lambda: _clean(served))
    assert served.spec(device) is None


async def test_the_next_pod_gets_nothing_of_the_last(served: Bench) -> None:
    pod, ids, device = await _attach(served)
    await served.patch("s", {"consumer": {"releasing": True}})
    await served.until("released", lambda: _released(served, "s"))
    served.kubelet.forget_pod(pod)
    await served.patch("s", {"consumer": None})
    second = pod_uid()
    consumer = {"podUID": second, "podName": "second", "podNamespace": "default", "containers": ["main"]}
    await served.patch("s", {"consumer": consumer})
    fresh = await served.kubelet.allocate(second, "main", SLICE, ids)
    assert fresh != device, "the same ids, another nonce"
    await served.kubelet.pre_start(SLICE, ids)
    assert served.spec(device) is None
    assert served.spec(fresh) is not None


async def test_a_resize_changes_the_page_in_place(served: Bench) -> None:
    _, _, device = await _attach(served)
    spec = served.spec(device)
    (path,) = (served.state / "slices").glob("*/limits")
    inode = path.stat().st_ino
    await served.patch("s", {"cards": [{"uuid": CARD, "core": 50, "memory": "6Gi"}]})
    await served.until("new limits", lambda: served.limits_of(device).cards[0].memory == 6 << 30)
    assert served.limits_of(device).cards[0].core == 50
    assert path.stat().st_ino == inode
    assert served.spec(device) == spec


async def test_a_sick_card_shows_in_the_node_and_its_slices(served: Bench) -> None:
    await _attach(served)
    await served.until("Attached", lambda: _is(served, "Attached"))
    served.set_cards(cards=[], lost=[CARD])
    await served.until("CardUnhealthy", lambda: _is(served, "CardUnhealthy"))
    served.set_cards(cards=[card()])
    await served.until("Attached again", lambda: _is(served, "Attached"))


async def test_publishes_the_node_once(served: Bench) -> None:
    found = await served.until("published", lambda: _node(served))
    status = found["status"]
    assert (status["cardCount"], status["memory"]) == (2, "30Gi")
    assert condition(found)["reason"] == "Ready"
    await asyncio.wait([asyncio.create_task(asyncio.sleep(6))])
    again = await _node(served)
    assert again["metadata"]["resourceVersion"] == found["metadata"]["resourceVersion"], "nothing new, nothing written"


async def _node(bench: Bench) -> dict[str, object] | None:
    found = await bench.kube.find(resources.NODE_CARDS, bench.node)
    return found if condition(found).get("status") == "True" else None


async def test_real_processes_in_a_real_cgroup(bench: Bench) -> None:
    """The same release with a process of this machine, in a cgroup named as kubelet names a pod's."""
    pod = pod_uid()
    with _cgroup(f"pod{pod}") as group:
        await bench.start_agent(proc=Path("/proc"))
        await bench.ready()
        ids = bench.next_ticket()
        await bench.create_slice("s", pod=pod)
        await bench.kubelet.allocate(pod, "main", SLICE, ids)
        await bench.kubelet.pre_start(SLICE, ids)
        process = await asyncio.create_subprocess_exec("sleep", "300")
        try:
            (group / "cgroup.procs").write_text(str(process.pid))
            await bench.patch("s", {"consumer": {"releasing": True}})
            await bench.until("the spec is gone", lambda: not bench.specs())
            await bench.until("the folder stays", bench.slice_folders)
            assert await _released(bench, "s") == ""
        finally:
            process.kill()
            await process.wait()
        await bench.until("released", lambda: _released(bench, "s"))


@contextlib.contextmanager
def _cgroup(name: str):  # noqa: ANN202
    root = Path("/sys/fs/cgroup")
    base = next((path for path in (root / "systemd", root / "memory", root) if (path / "cgroup.procs").exists()), None)
    if base is None:
        pytest.skip("no cgroup hierarchy is mounted")
    group = base / f"egpu-test-{name}" / name
    try:
        group.mkdir(parents=True)
    except OSError as error:
        pytest.skip(f"cgroups cannot be made here: {error}")
    try:
        yield group
    finally:
        group.rmdir()
        group.parent.rmdir()


async def _again_until_done(bench: Bench, pod: str, ids: list[str]) -> str:
    """What kubelet does with a container that will not start: the same again. Returns its CDI device."""
    device = ""
    while True:
        try:
            device = device or await bench.kubelet.allocate(pod, "main", SLICE, ids)
            await bench.kubelet.pre_start(SLICE, ids)
        except (grpc.aio.AioRpcError, KeyError):
            await bench.until("the agent is gone", bench.gone_soon)
            await bench.kubelet.until(lambda: not bench.kubelet.devices)
            await bench.start_agent()
            await bench.ready()
        else:
            return device


@pytest.mark.parametrize("point", POINTS)
async def test_killed_between_two_steps_it_converges(bench: Bench, point: str) -> None:
    await bench.start_agent(crash_at=point)
    await bench.ready()
    pod, ids = pod_uid(), bench.next_ticket()
    made = await bench.create_slice("s", pod=pod)
    device = await _again_until_done(bench, pod, ids)
    assert bench.limits_of(device).slice_uid == made["metadata"]["uid"]
    assert bench.specs() == {f"elasticgpu.io-slice-{device.partition('=')[2]}.json"}
    bench.run_process(100, pod)
    await bench.patch("s", {"consumer": {"releasing": True}})
    if point in POINTS[5:7]:
        assert await bench.ended() == -9
        await bench.start_agent()
    await bench.until("the spec is gone", lambda: not bench.specs())
    assert await _released(bench, "s") == ""
    bench.end_process(100)
    if point in POINTS[7:]:
        assert await bench.ended() == -9
        await bench.start_agent()
    await bench.until("released", lambda: _released(bench, "s"))
    assert await _released(bench, "s") == pod
    assert not bench.specs()
    assert not bench.slice_folders()
    assert [ticket for ticket in bench.tickets().values() if ticket.attachment] == []


async def test_folders_of_slices_nobody_knows_are_swept(bench: Bench) -> None:
    for name in ("gone-1", "gone-2"):
        folder = bench.state / "slices" / name
        folder.mkdir(parents=True)
        (folder / "limits").write_bytes(b"old")
    await bench.start_agent()
    await bench.ready()
    await bench.until("the folders are gone", lambda: not bench.slice_folders())
