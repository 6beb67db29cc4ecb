"""The agent on a driver: gpusim's NVML through the real nvidia-ml-py, its CDI spec, and real processes on its cards."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from egpu import names, quantity, resources
from egpu_agent_testing import Bench, condition, pod_uid
from gpusim import config
from gpusim.install import install
from gpusim.testing import GpusimNode, running
from localcluster import LocalCluster

pytestmark = [pytest.mark.integration, pytest.mark.native]

CARDS: dict[str, Any] = {"cards": [{"model": "NVIDIA-T4"}, {"model": "NVIDIA-H200-141GB"}]}
HOLDER = """
import sys
from cuda.bindings import driver as cuda
cuda.cuInit(0)
device = cuda.cuDeviceGet(0)[1]
context = cuda.cuCtxCreate(None, 0, device)[1]
print(cuda.cuMemAlloc(1 << 30)[0], flush=True)
sys.stdin.read()
"""


@pytest.fixture
def driver() -> Iterator[GpusimNode]:
    with running(CARDS) as node:
        yield node


@pytest.fixture
async def bench(control_plane: LocalCluster) -> AsyncIterator[Bench]:
    async with Bench.open(control_plane.kubeconfig) as found:
        await found.kubelet.start()
        yield found


def _place(driver: GpusimNode, bench: Bench) -> None:
    """Puts libraries and CDI spec below the bench's host root, as on a node."""
    node = config.load(driver.dir.parent / "config.yaml")
    path = install(node=node, built=driver.lib_dir, root=bench.root / "host")
    path.replace(bench.cdi / path.name)


async def _start(bench: Bench, driver: GpusimNode, **more: object) -> None:
    await bench.start_agent(driver={"GPUSIM_DIR": str(driver.dir)}, proc=Path("/proc"), **more)
    await bench.ready()
    await bench.until("published", lambda: _published(bench))


async def _published(bench: Bench) -> dict[str, Any] | None:
    found = await bench.kube.find(resources.NODE_CARDS, bench.node)
    return found if found and (found.get("status") or {}).get("cards") else None


async def _health(bench: Bench, uuid: str) -> tuple[str, str]:
    found = await _published(bench) or {}
    card = next(card for card in found["status"]["cards"] if card["uuid"] == uuid)
    return card["health"], card.get("healthReason", "")


async def _until_health(bench: Bench, uuid: str, wanted: str, reason: str = "") -> None:
    async def probe() -> bool:
        health, why = await _health(bench, uuid)
        return health == wanted and reason in why

    await bench.until(f"{uuid} is {wanted} ({reason})", probe)


async def test_publishes_what_nvml_says(bench: Bench, driver: GpusimNode) -> None:
    _place(driver, bench)
    await _start(bench, driver)
    found = await _published(bench)
    assert found is not None
    t4, h200 = found["status"]["cards"]
    assert [card["uuid"] for card in (t4, h200)] == list(driver.uuids)
    assert t4["model"] == "Tesla T4"
    assert t4["tflops"]["fp32"] == "8.1"
    assert (h200["smCount"], h200["computeCapability"]) == (132, "9.0")
    for card in (t4, h200):
        assert quantity.parse(card["memory"]) == driver.truth().card(card["uuid"]).capacity
    assert condition(found)["status"] == "True"


async def test_health_follows_the_driver_and_recovers(bench: Bench, driver: GpusimNode) -> None:
    _place(driver, bench)
    await _start(bench, driver, xid_hold=2)
    uuid = driver.uuids[0]
    for fault, number, reason in (
        ("lost", 1, "does not answer"),
        ("vanish", 1, ""),
        ("ecc", 3, ""),
        ("xid", 79, "XID 79"),
    ):
        driver.fault(uuid, fault, number)
        await _until_health(bench, uuid, "Unhealthy", reason)
        driver.fault(uuid, "heal")
        await _until_health(bench, uuid, "Healthy")
    driver.fault(uuid, "xid", 43)
    await bench.until("the agent heard of it", lambda: "xid 43" in bench.log())
    await _until_health(bench, uuid, "Healthy")


async def test_a_container_gets_the_drivers_own_edits_for_its_card(bench: Bench, driver: GpusimNode) -> None:
    _place(driver, bench)
    await _start(bench, driver)
    pod, ids = pod_uid(), bench.next_ticket()
    await bench.create_slice("s", pod=pod, cards=[driver.uuids[1]])
    device = await bench.kubelet.allocate(pod, "main", names.TICKET, ids)
    await bench.kubelet.pre_start(names.TICKET, ids)
    spec = bench.spec(device)
    assert spec is not None
    edits = spec["devices"][0]["containerEdits"]
    targets = [entry["containerPath"] for entry in edits["mounts"]]
    assert f"/dev/gpusim/cards/{driver.uuids[1]}" in targets
    assert f"/dev/gpusim/cards/{driver.uuids[0]}" not in targets
    assert any(path.endswith("libcuda.so.1") for path in targets)
    assert len(targets) == len(set(targets))
    assert not [entry for entry in edits.get("env", ()) if driver.uuids[1] in entry]


async def test_a_card_the_toolkit_does_not_list_starts_nothing(bench: Bench, driver: GpusimNode) -> None:
    _place(driver, bench)
    await _start(bench, driver)
    pod, ids = pod_uid(), bench.next_ticket()
    await bench.create_slice("s", pod=pod)
    await bench.kubelet.allocate(pod, "main", names.TICKET, ids)
    with pytest.raises(Exception, match="nvidia-ctk cdi generate"):
        await bench.kubelet.pre_start(names.TICKET, ids)


async def test_a_process_holds_the_release_until_its_memory_is_free(bench: Bench, driver: GpusimNode) -> None:
    _place(driver, bench)
    pod, ids = pod_uid(), bench.next_ticket()
    with _cgroup(pod) as group:
        await _start(bench, driver)
        await bench.create_slice("s", pod=pod, cards=[driver.uuids[0]])
        await bench.kubelet.allocate(pod, "main", names.TICKET, ids)
        await bench.kubelet.pre_start(names.TICKET, ids)
        client = driver.python(HOLDER)
        try:
            (group / "cgroup.procs").write_text(str(client.pid))
            assert client.stdout is not None
            assert "SUCCESS" in await asyncio.to_thread(client.stdout.readline)
            await bench.patch("s", {"consumer": {"releasing": True}})
            await bench.until("the spec is gone", lambda: _no_slice_spec(bench))
            assert driver.truth().card(driver.uuids[0]).used >= 1 << 30
            assert await _released(bench) == ""
        finally:
            client.kill()
            await asyncio.to_thread(client.communicate)
        await bench.until("released", lambda: _released(bench))
        assert driver.truth().card(driver.uuids[0]).used == 0


async def test_a_driver_that_comes_later_is_found(bench: Bench, driver: GpusimNode) -> None:
    await bench.start_agent(driver={"GPUSIM_DIR": str(driver.dir)})
    await bench.ready()
    await bench.until("DriverMissing", lambda: _node_reason(bench, "DriverMissing"))
    _place(driver, bench)
    await bench.until("Ready", lambda: _node_reason(bench, "Ready"))


async def _node_reason(bench: Bench, reason: str) -> bool:
    return condition(await bench.kube.find(resources.NODE_CARDS, bench.node)).get("reason") == reason


async def _released(bench: Bench) -> str:
    return str(((await bench.slice("s") or {}).get("status") or {}).get("releasedPodUID") or "")


def _no_slice_spec(bench: Bench) -> bool:
    return not [name for name in bench.specs() if name.startswith("elasticgpu.io-slice-")]


@contextlib.contextmanager
def _cgroup(pod: str) -> Iterator[Path]:
    root = Path("/sys/fs/cgroup")
    base = next((path for path in (root / "systemd", root / "memory", root) if (path / "cgroup.procs").exists()), None)
    if base is None:
        pytest.skip("no cgroup hierarchy is mounted")
    group = base / f"egpu-test-{pod}" / f"pod{pod}"
    try:
        group.mkdir(parents=True)
    except OSError as error:
        pytest.skip(f"cgroups cannot be made here: {error}")
    try:
        yield group
    finally:
        group.rmdir()
        group.parent.rmdir()
