"""The simulated NVML under an unchanged client: nvidia-ml-py."""

import json
import re
import textwrap
from collections.abc import Iterator

import pytest

from gpusim import build
from gpusim.testing import GpusimNode, running, wait_for

pytestmark = pytest.mark.native

MIB = 1 << 20
CLIENT = """
import json, os, sys
import pynvml as n
n.nvmlInit()
handles = [n.nvmlDeviceGetHandleByIndex(i) for i in range(n.nvmlDeviceGetCount())]
"""
HOLDER = """
import sys
from cuda.bindings import driver as d

def ok(result):
    assert result[0] == 0, result[0]
    return result[1] if len(result) == 2 else result[1:]

ok(d.cuInit(0))
print("init", flush=True)
sys.stdin.readline()
ok(d.cuCtxSetCurrent(ok(d.cuDevicePrimaryCtxRetain(0))))
ok(d.cuMemAlloc(6 << 20))
module = ok(d.cuModuleLoadData(b".version 8.0\\n.target sm_75\\n.visible .entry spin_ms_50() { ret; }"))
spin = ok(d.cuModuleGetFunction(module, b"spin_ms_50"))
print("context", flush=True)
while sys.stdin.readline():
    for _ in range(40):
        ok(d.cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0))
"""


@pytest.fixture(scope="module")
def node() -> Iterator[GpusimNode]:
    with running("mixed", node="node-a") as running_node:
        yield running_node


def client(node: GpusimNode, body: str, *arguments: str, **env: str) -> str:
    return node.run(CLIENT + textwrap.dedent(body), *arguments, **env)


def test_a_card_is_what_the_description_says(node: GpusimNode) -> None:
    out = client(
        node,
        """
        h = handles[1]
        v2 = n.nvmlDeviceGetMemoryInfo(h, version=n.nvmlMemory_v2)
        v1 = n.nvmlDeviceGetMemoryInfo(h)
        pci = n.nvmlDeviceGetPciInfo(h)
        assert n.nvmlDeviceGetUUID(n.nvmlDeviceGetHandleByUUID(sys.argv[1])) == sys.argv[1]
        assert n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleByPciBusId(pci.busId)) == 1
        print(json.dumps({
            "driver": n.nvmlSystemGetDriverVersion(), "cuda": n.nvmlSystemGetCudaDriverVersion(),
            "count": len(handles), "name": n.nvmlDeviceGetName(h), "uuid": n.nvmlDeviceGetUUID(h),
            "minor": n.nvmlDeviceGetMinorNumber(h), "bus": pci.busId, "legacy": pci.busIdLegacy,
            "v1": [v1.total, v1.free, v1.used], "v2": [v2.total, v2.reserved, v2.free, v2.used],
            "cc": n.nvmlDeviceGetCudaComputeCapability(h), "processes": n.nvmlDeviceGetComputeRunningProcesses(h),
        }))
        """,
        node.uuids[1],
    )
    total, reserved = 23028 * MIB, 512 * MIB
    assert json.loads(out) == {
        "driver": "580.65.06",
        "cuda": 13000,
        "count": 2,
        "name": "NVIDIA A10",
        "uuid": node.uuids[1],
        "minor": 1,
        "bus": "00000000:05:00.0",
        "legacy": "0000:05:00.0",
        "v1": [total, total - reserved, reserved],
        "v2": [total, reserved, total - reserved, 0],
        "cc": [8, 6],
        "processes": [],
    }


def test_processes_are_listed_from_their_context_on(node: GpusimNode) -> None:
    holder = node.python(HOLDER)
    assert holder.stdin
    assert holder.stdout

    def listed() -> list[list[int]]:
        return json.loads(
            client(
                node,
                """
                lists = [n.nvmlDeviceGetComputeRunningProcesses, n.nvmlDeviceGetComputeRunningProcesses_v2]
                found = [[[p.pid, p.usedGpuMemory] for p in ask(handles[0])] for ask in lists]
                for p in n.nvmlDeviceGetComputeRunningProcesses(handles[0]):
                    assert n.nvmlSystemGetProcessName(p.pid) == "python", n.nvmlSystemGetProcessName(p.pid)
                assert found[0] == found[1]
                assert n.nvmlDeviceGetComputeRunningProcesses(handles[1]) == []
                print(json.dumps(found[0]))
                """,
            )
        )

    try:
        assert holder.stdout.readline() == "init\n"
        assert listed() == []
        holder.stdin.write("go\n")
        holder.stdin.flush()
        assert holder.stdout.readline() == "context\n"
        assert listed() == [[holder.pid, (256 + 6 + 2) * MIB]]
    finally:
        holder.communicate()
    wait_for(lambda: listed() == [], what="the process's end")


def test_utilisation_is_that_of_the_last_sample(node: GpusimNode) -> None:
    holder = node.python(HOLDER)
    assert holder.stdin
    try:
        holder.stdin.write("go\nspin\n")
        holder.stdin.flush()
        out = client(
            node,
            """
            import time
            deadline = time.monotonic() + 15
            pid, seen = int(sys.argv[1]), []
            while not seen and time.monotonic() < deadline:
                try:
                    samples = n.nvmlDeviceGetProcessUtilization(handles[0], 0)
                    seen = [s for s in samples if s.pid == pid and s.smUtil > 90]
                except n.NVMLError_NotFound:
                    pass
                time.sleep(0.02)
            rates = n.nvmlDeviceGetUtilizationRates(handles[0])
            print(seen[0].smUtil > 90 and seen[0].timeStamp > 1e15, rates.gpu > 90)
            """,
            str(holder.pid),
        )
        assert out.split() == ["True", "True"]
    finally:
        holder.communicate()


def test_faults_are_seen(node: GpusimNode) -> None:
    watcher = node.python(
        CLIENT
        + textwrap.dedent("""
        events = n.nvmlEventSetCreate()
        for h in handles:
            n.nvmlDeviceRegisterEvents(h, n.nvmlEventTypeXidCriticalError | n.nvmlEventTypeDoubleBitEccError, events)
        print("watching", flush=True)
        for _ in range(4):
            e = n.nvmlEventSetWait_v2(events, 20000)
            print(json.dumps([e.eventType, e.eventData]), flush=True)
        try:
            n.nvmlEventSetWait_v2(events, 50)
        except n.NVMLError_Timeout:
            print("timeout", flush=True)
        """)
    )
    assert watcher.stdout
    assert watcher.stdout.readline() == "watching\n"
    lost = node.uuids[1]
    node.fault(lost, "xid", 31)
    assert json.loads(watcher.stdout.readline()) == [8, 31]
    node.fault(lost, "ecc", 3)
    assert [json.loads(watcher.stdout.readline()) for _ in range(2)] == [[2, 0], [8, 48]]
    assert client(node, "print(n.nvmlDeviceGetTotalEccErrors(handles[1], 1, 0))").strip() == "3"
    node.fault(lost, "lost")
    assert json.loads(watcher.stdout.readline()) == [8, 79]
    out, err = watcher.communicate(timeout=20)
    assert (out, watcher.returncode) == ("timeout\n", 0), err
    gone = node.run(
        textwrap.dedent("""
        import pynvml as n
        n.nvmlInit()
        print(n.nvmlDeviceGetCount())
        try:
            n.nvmlDeviceGetHandleByIndex(1)
        except n.NVMLError_GpuIsLost:
            print("lost")
        """)
    )
    assert gone.split() == ["2", "lost"]
    node.fault(lost, "vanish")
    assert client(node, "print(len(handles))").strip() == "1"
    node.fault(lost, "heal")
    assert client(node, "print(len(handles), n.nvmlDeviceGetTotalEccErrors(handles[1], 1, 0))").split() == ["2", "0"]


def test_links_and_migs() -> None:
    with running("h200x8") as big:
        client(
            big,
            """
            assert len(handles) == 8
            peer = n.nvmlDeviceGetP2PStatus(handles[0], handles[7], n.NVML_P2P_CAPS_INDEX_NVLINK)
            assert peer == n.NVML_P2P_STATUS_OK
            levels = [n.nvmlDeviceGetTopologyCommonAncestor(handles[0], h) for h in handles[1:]]
            assert levels == [n.NVML_TOPOLOGY_NODE] * 3 + [n.NVML_TOPOLOGY_SYSTEM] * 4
            assert n.nvmlDeviceGetNvLinkState(handles[0], 17) == n.NVML_FEATURE_ENABLED
            try:
                n.nvmlDeviceGetMigMode(handles[0])
            except n.NVMLError_NotSupported:
                pass
            else:
                raise AssertionError("MIG is supported")
            """,
        )


def test_a_container_sees_the_cards_whose_files_it_has(node: GpusimNode) -> None:
    """As bind mounts of the CDI spec make it: state and socket, and one card's file."""
    view = node.dir.parent / "view"
    (view / "cards").mkdir(parents=True)
    for name in ("state", "ctl.sock", f"cards/{node.uuids[1]}"):
        (view / name).symlink_to(node.dir / name)
    out = client(
        node,
        """
        from cuda.bindings import driver as d
        assert d.cuInit(0)[0] == 0
        print(json.dumps([[n.nvmlDeviceGetUUID(h) for h in handles], d.cuDeviceGetCount()[1]]))
        """,
        GPUSIM_DIR=str(view),
    )
    assert json.loads(out) == [[node.uuids[1]], 1]


def test_without_a_driver_nvml_says_so(node: GpusimNode) -> None:
    code = "import pynvml as n\ntry:\n    n.nvmlInit()\nexcept n.NVMLError_DriverNotLoaded:\n    print('not loaded')"
    assert node.run(code, GPUSIM_DIR="/nonexistent").strip() == "not loaded"


@pytest.mark.parametrize("library", build.LIBRARIES, ids=lambda library: library.soname)
def test_the_libraries_export_the_lists_and_nothing_else(node: GpusimNode, library: build.Library) -> None:
    listing = node.start(["readelf", "--wide", "--dyn-syms", str(node.lib_dir / library.soname)]).communicate()[0]
    defined = re.findall(r"(?:FUNC|OBJECT)\s+GLOBAL\s+DEFAULT\s+\d+ (\S+)", listing)
    assert sorted(defined) == sorted(build.symbols(library))
