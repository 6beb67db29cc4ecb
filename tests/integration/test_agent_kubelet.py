"""The agent and kubelet: registration, restarts of either, first starts and restarts of containers."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path

import grpc.aio
import pytest

from egpu import names
from egpu_agent_testing import CARD, OTHER_CARD, Bench, condition, pod_uid
from localcluster import LocalCluster

pytestmark = pytest.mark.integration

SLICE, INIT = names.TICKET, names.INIT_TICKET


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


async def _refusal(bench: Bench, resource: str, ids: list[str]) -> str:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await bench.kubelet.pre_start(resource, ids)
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    return caught.value.details() or ""


async def test_offers_stable_tickets_of_both_kinds(served: Bench) -> None:
    assert served.kubelet.devices[SLICE] == [f"slice-{number}" for number in range(1024)]
    assert served.kubelet.devices[INIT] == [f"init-slice-{number}" for number in range(1024)]


async def test_registers_again_with_a_new_kubelet(served: Bench) -> None:
    for _ in range(2):
        await served.kubelet.stop()
        await served.kubelet.start()
        await served.ready()
    assert served.running


async def test_registers_again_when_kubelet_drops_the_connection(served: Bench) -> None:
    await served.kubelet.disconnect(SLICE)
    await served.ready()
    assert served.kubelet.registrations.count(INIT) == 1, "the other plug-in is left alone"


async def test_waits_for_a_kubelet_that_comes_later(bench: Bench) -> None:
    await bench.kubelet.stop()
    await bench.start_agent()
    await bench.until("the agent tried", lambda: "no connection with kubelet" in bench.log())
    await bench.kubelet.start()
    await bench.ready()


async def test_a_new_agent_takes_over_from_one_told_to_end_and_from_one_killed(served: Bench) -> None:
    for kill in (False, True):
        begun = time.monotonic()
        code = await served.stop_agent(kill=kill)
        assert code == (-9 if kill else 0)
        assert time.monotonic() - begun < 5
        await served.kubelet.until(lambda: not served.kubelet.devices)
        await served.start_agent()
        await served.ready()


async def test_a_container_gets_its_own_slice(served: Bench) -> None:
    pod = pod_uid()
    main = await served.create_slice("main", pod=pod, containers=["main"], memory="4Gi")
    side = await served.create_slice("side", pod=pod, containers=["side"], memory="1Gi", cards=[OTHER_CARD])
    names_of = {}
    for container in ("main", "side"):
        ids = served.next_ticket()
        names_of[container] = await served.kubelet.allocate(pod, container, SLICE, ids)
        assert served.spec(names_of[container]) is None, "before PreStartContainer the device resolves to nothing"
        await served.kubelet.pre_start(SLICE, ids)
    for container, made, card, size in (("main", main, CARD, 4), ("side", side, OTHER_CARD, 1)):
        page = served.limits_of(names_of[container])
        assert page.slice_uid == made["metadata"]["uid"]
        assert [(limit.uuid, limit.memory, limit.core) for limit in page.cards] == [(card, size << 30, 25)]
        spec = served.spec(names_of[container])
        assert spec is not None
        edits = spec["devices"][0]["containerEdits"]
        assert {m["containerPath"]: m["options"][0] for m in edits["mounts"]} == {
            "/etc/elasticgpu/limits": "ro",
            "/etc/elasticgpu/usage": "rw",
            "/usr/lib/elasticgpu/libvgpu.so": "ro",
            "/etc/ld.so.preload": "ro",
        }
        assert edits["env"] == [f"CARDS={card}"]
    await served.until("Ready", lambda: _attached(served, "main"))


async def _attached(bench: Bench, name: str) -> bool:
    return condition(await bench.slice(name)).get("reason") == "Attached"


async def test_init_containers_that_share_ids_all_get_the_slice(served: Bench) -> None:
    pod = pod_uid()
    made = await served.create_slice("init", pod=pod, containers=["first", "second"])
    ids = served.next_ticket(INIT)
    devices = [await served.kubelet.allocate(pod, container, INIT, ids) for container in ("first", "second")]
    await served.kubelet.pre_start(INIT, ids)
    assert len(set(devices)) == 2
    assert {served.limits_of(device).slice_uid for device in devices} == {made["metadata"]["uid"]}


async def test_forty_pods_at_once(served: Bench) -> None:
    pods = [pod_uid() for _ in range(40)]
    devices, ids = {}, {pod: served.next_ticket() for pod in pods}
    made = {}
    for number, pod in enumerate(pods):
        made[pod] = await served.create_slice(f"s{number}", pod=pod, memory=f"{100 + number}Mi")
    begun = time.monotonic()
    for pod in pods:
        devices[pod] = await served.kubelet.allocate(pod, "main", SLICE, ids[pod])
    await asyncio.gather(*(served.kubelet.pre_start(SLICE, ids[pod]) for pod in pods))
    assert time.monotonic() - begun < 8
    for number, pod in enumerate(pods):
        page = served.limits_of(devices[pod])
        assert (page.slice_uid, page.cards[0].memory) == (made[pod]["metadata"]["uid"], (100 + number) << 20)


async def test_waits_for_a_slice_that_comes_a_little_later(served: Bench) -> None:
    pod, ids = pod_uid(), served.next_ticket()
    device = await served.kubelet.allocate(pod, "main", SLICE, ids)
    begun = asyncio.create_task(served.kubelet.pre_start(SLICE, ids))
    done, _ = await asyncio.wait([begun], timeout=0.5)
    assert not done
    made = await served.create_slice("late", pod=pod)
    await begun
    assert served.limits_of(device).slice_uid == made["metadata"]["uid"]


async def test_pod_resources_is_a_second_opinion(served: Bench) -> None:
    await served.kubelet.pod_resources.start()
    try:
        for listed, starts in (([], False), (["slice-77"], False), (None, True), ("its own", True)):
            pod, ids = pod_uid(), served.next_ticket()
            await served.create_slice(f"s-{ids[0]}", pod=pod)
            await served.kubelet.allocate(pod, "main", SLICE, ids)
            if listed is not None:
                found = ids if listed == "its own" else listed
                served.kubelet.pod_resources.pods["default", f"pod-{pod[:8]}"] = {"main": (SLICE, found)}
            if starts:
                await served.kubelet.pre_start(SLICE, ids)
            else:
                assert "to another container than main" in await _refusal(served, SLICE, ids)
    finally:
        await served.kubelet.pod_resources.stop()


async def test_a_start_that_kubelet_gives_up_is_finished(served: Bench) -> None:
    pod, ids = pod_uid(), served.next_ticket()
    await served.create_slice("s", pod=pod)
    await served.kubelet.allocate(pod, "main", SLICE, ids)
    for _ in range(5):
        with contextlib.suppress(grpc.aio.AioRpcError):
            await served.kubelet.pre_start(SLICE, ids, timeout=0.002)
    await served.kubelet.pre_start(SLICE, ids)
    assert len(served.specs()) == 1
    await served.patch("s", {"consumer": {"releasing": True}})
    await served.until(
        "all is clean", lambda: not served.specs() and not served.slice_folders() and not served.tickets()
    )


async def test_refusals_say_what_to_do(served: Bench) -> None:
    stranger, ended, ids = pod_uid(), pod_uid(), served.next_ticket()
    assert "names no container for the tickets slice-9" in await _refusal(served, SLICE, ["slice-9"])
    await served.create_slice("anothers", pod=pod_uid())
    await served.kubelet.allocate(stranger, "main", SLICE, ids)
    assert f"(UID {stranger}) as its consumer" in await _refusal(served, SLICE, ids)
    await served.create_slice("ended", pod=ended)
    await served.patch("ended", {"consumer": {"releasing": True}})
    await served.kubelet.allocate(ended, "main", SLICE, ids := served.next_ticket())
    assert "being released" in await _refusal(served, SLICE, ids)
    assert served.specs() == set()


async def test_containers_restart_while_the_api_server_is_down(served: Bench, tmp_path: Path) -> None:
    pod, ids = pod_uid(), served.next_ticket()
    await served.create_slice("s", pod=pod)
    device = await served.kubelet.allocate(pod, "main", SLICE, ids)
    await served.kubelet.pre_start(SLICE, ids)
    before = served.spec(device)
    await served.stop_agent()
    unreachable = tmp_path / "unreachable"
    unreachable.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "c",
                "clusters": [
                    {"name": "l", "cluster": {"server": "https://127.0.0.1:1", "insecure-skip-tls-verify": True}}
                ],
                "users": [{"name": "u", "user": {"token": "t"}}],
                "contexts": [{"name": "c", "context": {"cluster": "l", "user": "u"}}],
            }
        )
    )
    await served.start_agent(kubeconfig=unreachable)
    await served.ready()
    await served.kubelet.pre_start(SLICE, ids)
    assert served.spec(device) == before
    fresh = served.next_ticket()
    await served.kubelet.allocate(pod_uid(), "main", SLICE, fresh)
    assert "the API server cannot be asked" in await _refusal(served, SLICE, fresh)


async def test_specs_lost_with_a_reboot_are_there_before_kubelet_asks(served: Bench) -> None:
    pod, ids = pod_uid(), served.next_ticket()
    made = await served.create_slice("s", pod=pod)
    device = await served.kubelet.allocate(pod, "main", SLICE, ids)
    await served.kubelet.pre_start(SLICE, ids)
    await served.stop_agent()
    for path in served.cdi.iterdir():
        path.unlink()
    await served.start_agent()
    await served.ready()
    assert served.limits_of(device).slice_uid == made["metadata"]["uid"]


async def test_a_lost_checkpoint_is_rebuilt(served: Bench) -> None:
    pod, ids = pod_uid(), served.next_ticket()
    made = await served.create_slice("s", pod=pod)
    device = await served.kubelet.allocate(pod, "main", SLICE, ids)
    await served.kubelet.pre_start(SLICE, ids)
    waiting, later = pod_uid(), served.next_ticket()
    unstarted = await served.kubelet.allocate(waiting, "main", SLICE, later)
    await served.stop_agent()
    (served.state / "checkpoint.json").write_text("{broken")
    await served.start_agent()
    await served.ready()
    assert served.limits_of(device).slice_uid == made["metadata"]["uid"], "the running container keeps its spec"
    second = await served.create_slice("second", pod=waiting)
    await served.kubelet.pre_start(SLICE, later)
    assert served.limits_of(unstarted).slice_uid == second["metadata"]["uid"]
    assert (served.state / "checkpoint.broken").exists()


async def test_a_thousand_stale_specs_are_never_met_again(bench: Bench) -> None:
    stale = {f"{number:032x}" for number in range(1000)}
    for nonce in stale:
        spec = {"cdiVersion": "0.6.0", "kind": names.CDI_KIND, "devices": [{"name": nonce, "containerEdits": {}}]}
        (bench.cdi / f"elasticgpu.io-slice-{nonce}.json").write_text(json.dumps(spec))
    (bench.cdi / "nvidia.json").write_text("{}")
    await bench.start_agent()
    await bench.ready()
    assert bench.specs() == {"nvidia.json"}
    pod, ids = pod_uid(), bench.next_ticket()
    made = await bench.create_slice("s", pod=pod)
    device = await bench.kubelet.allocate(pod, "main", SLICE, ids)
    assert device.partition("=")[2] not in stale
    await bench.kubelet.pre_start(SLICE, ids)
    assert bench.limits_of(device).slice_uid == made["metadata"]["uid"]
    assert bench.specs() == {"nvidia.json", f"elasticgpu.io-slice-{device.partition('=')[2]}.json"}
