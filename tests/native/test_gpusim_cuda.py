"""The simulated CUDA driver under an unchanged client: PyPI cuda-bindings."""

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator

import pytest

from gpusim.state import STATE_FILE, State
from gpusim.testing import GpusimNode, running, wait_for

pytestmark = pytest.mark.native

MIB = 1 << 20
GPUSIM_LOCK_WAITERS = 0x80000000
CLIENT = """
import ctypes, json, os, sys
from cuda.bindings import driver as d

def ok(result):
    assert result[0] == 0, result[0]
    return result[1] if len(result) == 2 else result[1:]

def start(ordinal=0):
    ok(d.cuInit(0))
    device = ok(d.cuDeviceGet(ordinal))
    ok(d.cuCtxSetCurrent(ok(d.cuDevicePrimaryCtxRetain(device))))
    return device

def free():
    return ok(d.cuMemGetInfo())[0]
"""
PTX = r"""
PTX = b'''.version 8.0
.target sm_75
.address_size 64
// gpusim: by_wave wave_ns=100000000
// gpusim: noted duration_ns=300000000
.visible .global .align 4 .b8 table[256];
.visible .entry spin_ms_200() { ret; }
.visible .entry by_wave() { ret; }
.visible .entry noted() { ret; }
.visible .entry vectorAdd(.param .u64 a, .param .u64 b, .param .u64 c, .param .u32 n) { ret; }
'''
"""


@pytest.fixture(scope="module")
def node() -> Iterator[GpusimNode]:
    with running({"cards": [{"model": "NVIDIA-T4"}, {"model": "NVIDIA-A10"}]}) as running_node:
        yield running_node


def client(node: GpusimNode, body: str, *arguments: str, **env: str) -> str:
    return node.run(CLIENT + PTX + textwrap.dedent(body), *arguments, **env)


def hear(process: subprocess.Popen[str]) -> str:
    assert process.stdout
    return process.stdout.readline().strip()


def say(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin
    process.stdin.write(line + "\n")
    process.stdin.flush()


def test_a_device_is_what_the_description_says(node: GpusimNode) -> None:
    out = client(
        node,
        """
        device = start()
        a = d.CUdevice_attribute
        print(json.dumps({
            "version": ok(d.cuDriverGetVersion()), "count": ok(d.cuDeviceGetCount()),
            "name": ok(d.cuDeviceGetName(64, device)).split(b"\\0")[0].decode(),
            "uuid": ok(d.cuDeviceGetUuid(device)).bytes.hex(),
            "total": ok(d.cuDeviceTotalMem(device)),
            "sm": ok(d.cuDeviceGetAttribute(a.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device)),
            "threads": ok(d.cuDeviceGetAttribute(a.CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, device)),
            "bus": ok(d.cuDeviceGetPCIBusId(32, device)).split(b"\\0")[0].decode(),
        }))
        """,
    )
    assert json.loads(out) == {
        "version": 13000,
        "count": 2,
        "name": "Tesla T4",
        "uuid": node.uuids[0].removeprefix("GPU-").replace("-", ""),
        "total": (15360 - 425) * MIB,
        "sm": 40,
        "threads": 1024,
        "bus": "0000:04:00.0",
    }


def test_memory_round_trips_through_the_device(node: GpusimNode) -> None:
    client(
        node,
        """
        start()
        size = 3 << 20
        data = os.urandom(size)
        a, b = ok(d.cuMemAlloc(size)), ok(d.cuMemAlloc(size))
        ok(d.cuMemcpyHtoD(a, data, size))
        ok(d.cuMemcpyDtoD(b, a, size))
        back = bytearray(size)
        ok(d.cuMemcpyDtoH(back, b, size))
        assert bytes(back) == data
        ok(d.cuMemsetD32(b, 0x01020304, 16))
        ok(d.cuMemcpyDtoH(back, b, 64))
        assert bytes(back[:64]) == bytes([4, 3, 2, 1]) * 16 and bytes(back[64:]) == data[64:]
        assert d.cuMemcpyHtoD(int(a) + size - 1, data, 2)[0] == d.CUresult.CUDA_ERROR_INVALID_VALUE
        base, length = ok(d.cuMemGetAddressRange(d.CUdeviceptr(int(a) + 12345)))
        assert (int(base), length) == (int(a), size)
        ok(d.cuMemFree(a))
        assert d.cuMemFree(a)[0] == d.CUresult.CUDA_ERROR_INVALID_VALUE
        """,
    )


@pytest.mark.parametrize(
    ("granule", "sizes", "charged"),
    [
        pytest.param(2 * MIB, [1], 2 * MIB, id="one byte takes a block"),
        pytest.param(2 * MIB, [512] * 4096, 2 * MIB, id="small ones share a block to the last unit"),
        pytest.param(2 * MIB, [512] * 4097, 4 * MIB, id="one more takes the next"),
        pytest.param(2 * MIB, [MIB, MIB], 2 * MIB, id="two halves"),
        pytest.param(2 * MIB, [MIB + 1], 2 * MIB, id="more than half is a block of its own"),
        pytest.param(2 * MIB, [2 * MIB + 1], 4 * MIB, id="large ones round up"),
        pytest.param(512, [1, 513, 3 * MIB], 512 + 1024 + 3 * MIB, id="without sharing each rounds up"),
    ],
)
def test_memory_is_charged_to_the_byte(granule: int, sizes: list[int], charged: int) -> None:
    card = {"model": "NVIDIA-T4", "memory_mib": 64, "reserved_mib": 4, "context_bytes": 16 * MIB}
    with running({"granule": granule, "cards": [card]}) as small:
        client(
            small,
            """
            start()
            sizes, charged = json.loads(sys.argv[1]), int(sys.argv[2])
            assert free() == 44 << 20
            kept = [ok(d.cuMemAlloc(size)) for size in sizes]
            assert (44 << 20) - free() == charged, ((44 << 20) - free(), charged)
            for pointer in kept[::2] + kept[1::2]:
                ok(d.cuMemFree(pointer))
            assert free() == 44 << 20
            """,
            json.dumps(sizes),
            str(charged),
        )


def test_the_card_is_full_exactly_at_its_capacity() -> None:
    with running(
        {"cards": [{"model": "NVIDIA-T4", "memory_mib": 128, "reserved_mib": 0, "context_bytes": 0}]}
    ) as small:
        client(
            small,
            """
            start()
            whole = ok(d.cuMemAlloc(128 << 20))
            assert free() == 0
            assert d.cuMemAlloc(1)[0] == d.CUresult.CUDA_ERROR_OUT_OF_MEMORY
            ok(d.cuMemFree(whole))
            assert d.cuMemAlloc((128 << 20) + 1)[0] == d.CUresult.CUDA_ERROR_OUT_OF_MEMORY
            ok(d.cuMemAlloc(128 << 20))
            """,
        )


def test_two_processes_fill_a_card_and_kill_9_frees_it_to_the_byte() -> None:
    filler = CLIENT + textwrap.dedent("""
        start()
        print("up", flush=True)
        sys.stdin.readline()
        blocks = []
        while True:
            rc, pointer = d.cuMemAlloc(4 << 20)
            if rc != 0:
                break
            blocks.append(pointer)
        print(len(blocks), flush=True)
        sys.stdin.read()
    """)
    card = {"model": "NVIDIA-T4", "memory_mib": 512, "reserved_mib": 0, "context_bytes": 20 * MIB}
    with running({"cards": [card]}) as small:
        both = [small.python(filler), small.python(filler)]
        assert [hear(process) for process in both] == ["up", "up"]
        for process in both:
            say(process, "go")
        counts = [int(hear(process)) for process in both]
        truth = small.truth().cards[0]
        assert truth.used == sum(counts) * 4 * MIB + 40 * MIB == truth.capacity
        both[0].kill()
        both[0].communicate()
        kept = 20 * MIB + counts[1] * 4 * MIB
        wait_for(lambda: small.truth().cards[0].used == kept, what="memory of the killed process")
        row = small.truth().process(both[0].pid)
        assert row is not None
        assert (row.alive, row.cards[small.uuids[0]].peak) == (False, 20 * MIB + counts[0] * 4 * MIB)
        both[1].communicate()
        wait_for(lambda: small.truth().cards[0].used == 0, what="memory of the ended process")


def test_a_storm_of_kills_leaves_nothing_and_never_overcommits() -> None:
    churn = CLIENT + textwrap.dedent("""
        start()
        print("up", flush=True)
        kept = []
        while True:
            rc, pointer = d.cuMemAlloc(3 << 20)
            if rc == 0:
                kept.append(pointer)
            if rc != 0 or len(kept) > 30:
                for pointer in kept:
                    ok(d.cuMemFree(pointer))
                kept = []
    """)
    card = {"model": "NVIDIA-T4", "memory_mib": 256, "reserved_mib": 0, "context_bytes": 8 * MIB}
    with running({"cards": [card]}) as small:
        for _ in range(4):
            crowd = [small.python(churn) for _ in range(3)]
            for process in crowd:
                assert hear(process) == "up"
            for process in crowd:
                seen = small.truth().cards[0]
                assert seen.used <= seen.capacity
                process.kill()
                process.communicate()
        wait_for(lambda: not small.truth().processes, what="slots of the killed")
        assert small.truth().cards[0].used == 0
        client(small, "start(); assert free() == 248 << 20")


def test_a_process_killed_with_a_lock_in_hand_stops_nobody() -> None:
    holder = CLIENT + 'start(); ok(d.cuMemAlloc(4 << 20)); print("up", flush=True); sys.stdin.read()'
    with running("one-t4") as lonely:
        victim = lonely.python(holder)
        assert hear(victim) == "up"
        state = State(lonely.dir / STATE_FILE)
        card = state.root.cards[0]
        slot = next(index for index, slot in state.live_slots if slot.pid == victim.pid)
        card.lock = slot + 1  # as if it had been killed inside, between the slot's count and the card's
        state.root.slots[slot].card[0].data += 2 * MIB
        waiting = lonely.python(holder)
        wait_for(lambda: card.lock > GPUSIM_LOCK_WAITERS, what="somebody who waits for the lock")
        victim.kill()
        assert hear(waiting) == "up"
        wait_for(lambda: victim.poll() is not None and len(lonely.truth().processes) == 1, what="the victim's end")
        assert lonely.truth().cards[0].used == card.used == (256 + 4) * MIB
        for process in (victim, waiting):
            process.communicate()


def test_a_client_in_a_pid_namespace_is_known_by_its_node_wide_pid(node: GpusimNode) -> None:
    body = CLIENT + "start(); print(os.getpid(), flush=True); sys.stdin.read()"
    unshare = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", sys.executable, "-c", body]
    both = [node.start(unshare) for _ in range(2)]
    try:
        if [hear(process) for process in both] != ["1", "1"]:
            pytest.skip("this user may not make pid namespaces")
        pids = {process.pid for process in node.truth().processes}
        assert len(pids) == 2
        assert 1 not in pids
        client(node, "os.kill(int(sys.argv[1]), 0), os.kill(int(sys.argv[2]), 0)", *map(str, pids))
    finally:
        for process in both:
            process.communicate()
    wait_for(lambda: not node.truth().processes, what="the containers' end")


def test_a_child_of_fork_has_no_driver(node: GpusimNode) -> None:
    client(
        node,
        """
        start()
        ok(d.cuMemAlloc(1 << 20))
        child = os.fork()
        if child == 0:
            not_ready = d.CUresult.CUDA_ERROR_NOT_INITIALIZED
            os._exit(not (d.cuMemAlloc(1)[0] == not_ready and d.cuInit(0)[0] == not_ready))
        assert os.waitpid(child, 0)[1] == 0
        ok(d.cuMemAlloc(1 << 20))
        """,
    )


def test_a_forked_child_does_not_keep_the_memory_of_its_parent(node: GpusimNode) -> None:
    body = CLIENT + textwrap.dedent("""
        import time
        start()
        ok(d.cuMemAlloc(64 << 20))
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
        print(child, flush=True)
        sys.stdin.read()
    """)
    parent = node.python(body)
    child = int(hear(parent))
    try:
        parent.kill()
        parent.wait()
        wait_for(lambda: node.truth().card(node.uuids[0]).used == 0, what="the parent's end")
    finally:
        os.kill(child, signal.SIGKILL)
        parent.communicate()


@pytest.mark.parametrize(
    ("value", "cards"),
    [
        pytest.param("0", [0], id="index"),
        pytest.param("1,0", [1, 0], id="order"),
        pytest.param("{uuid1}", [1], id="uuid"),
        pytest.param("{short1},0", [1, 0], id="beginning of a uuid"),
        pytest.param("1,-1,0", [1], id="ends at the first that is none"),
        pytest.param("", [], id="empty hides all"),
        pytest.param("0,0", [], id="twice is void"),
        pytest.param("nonsense", [], id="nonsense hides all"),
    ],
)
def test_cuda_visible_devices(node: GpusimNode, value: str, cards: list[int]) -> None:
    wanted = value.format(uuid1=node.uuids[1], short1=node.uuids[1][:12])
    out = client(
        node,
        """
        rc = d.cuInit(0)[0]
        if rc != 0:
            assert rc == d.CUresult.CUDA_ERROR_NO_DEVICE
            print("[]")
        else:
            n = ok(d.cuDeviceGetCount())
            print(json.dumps([ok(d.cuDeviceGetUuid(ok(d.cuDeviceGet(i)))).bytes.hex() for i in range(n)]))
        """,
        CUDA_VISIBLE_DEVICES=wanted,
    )
    assert json.loads(out) == [node.uuids[i].removeprefix("GPU-").replace("-", "") for i in cards]


def test_kernels_take_their_time_in_order_on_a_stream(node: GpusimNode) -> None:
    client(
        node,
        """
        import time
        start()
        module = ok(d.cuModuleLoadData(PTX))
        spin = ok(d.cuModuleGetFunction(module, b"spin_ms_200"))
        stream, before, after = ok(d.cuStreamCreate(1)), ok(d.cuEventCreate(0)), ok(d.cuEventCreate(0))
        began = time.monotonic()
        ok(d.cuEventRecord(before, stream))
        for _ in range(5):
            ok(d.cuLaunchKernel(spin, 1, 1, 1, 32, 1, 1, 0, stream, 0, 0))
        ok(d.cuEventRecord(after, stream))
        assert d.cuStreamQuery(stream)[0] == d.CUresult.CUDA_ERROR_NOT_READY
        assert d.cuEventElapsedTime(before, after)[0] == d.CUresult.CUDA_ERROR_NOT_READY
        ok(d.cuStreamSynchronize(stream))
        assert time.monotonic() - began >= 1.0
        assert d.cuStreamQuery(stream)[0] == 0
        assert 1000 <= ok(d.cuEventElapsedTime(before, after)) < 1200
        """,
    )


def test_streams_overlap_and_the_legacy_stream_waits_for_them(node: GpusimNode) -> None:
    client(
        node,
        """
        start()
        module = ok(d.cuModuleLoadData(PTX))
        spin = ok(d.cuModuleGetFunction(module, b"spin_ms_200"))
        def launch(stream):
            ok(d.cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, stream, 0, 0))
        def lasts(streams):
            a, b = ok(d.cuEventCreate(0)), ok(d.cuEventCreate(0))
            ok(d.cuCtxSynchronize())
            ok(d.cuEventRecord(a, streams[0]))
            for stream in streams:
                launch(stream)
            ok(d.cuEventRecord(b, streams[-1]))
            ok(d.cuCtxSynchronize())
            return round(ok(d.cuEventElapsedTime(a, b)) / 200)
        blocking, free_ones = ok(d.cuStreamCreate(0)), [ok(d.cuStreamCreate(1)) for _ in range(2)]
        assert lasts(free_ones) == 1
        assert lasts([blocking, d.CUstream(0)]) == 2
        assert lasts([free_ones[0], d.CUstream(0)]) == 1
        assert lasts([blocking, d.CUstream(2)]) == 1
        event = ok(d.cuEventCreate(2))
        launch(free_ones[0])
        ok(d.cuEventRecord(event, free_ones[0]))
        ok(d.cuStreamWaitEvent(free_ones[1], event, 0))
        launch(free_ones[1])
        ok(d.cuStreamSynchronize(free_ones[1]))
        assert d.cuEventQuery(event)[0] == 0
        """,
    )


def test_a_duration_can_follow_the_grid(node: GpusimNode) -> None:
    client(
        node,
        """
        start()
        module = ok(d.cuModuleLoadData(PTX))
        def lasts(name, blocks, threads):
            f = ok(d.cuModuleGetFunction(module, name))
            a, b = ok(d.cuEventCreate(0)), ok(d.cuEventCreate(0))
            ok(d.cuEventRecord(a, 0))
            ok(d.cuLaunchKernel(f, blocks, 1, 1, threads, 1, 1, 0, 0, 0, 0))
            ok(d.cuEventRecord(b, 0))
            ok(d.cuEventSynchronize(b))
            return round(ok(d.cuEventElapsedTime(a, b)) / 100)
        assert [lasts(b"by_wave", n, 1024) for n in (1, 40, 41, 120)] == [1, 1, 2, 3]
        assert lasts(b"by_wave", 80, 512) == 1
        assert lasts(b"noted", 1000, 1024) == 3
        """,
    )


def test_vector_add_is_computed(node: GpusimNode) -> None:
    client(
        node,
        """
        from array import array
        start()
        n = 1000
        a, b = array("f", range(n)), array("f", [2.5] * n)
        pa, pb, pc = (ok(d.cuMemAlloc(4 * n)) for _ in range(3))
        ok(d.cuMemcpyHtoD(pa, a.tobytes(), 4 * n))
        ok(d.cuMemcpyHtoD(pb, b.tobytes(), 4 * n))
        f = ok(d.cuModuleGetFunction(ok(d.cuModuleLoadData(PTX)), b"vectorAdd"))
        values = tuple(int(p) for p in (pa, pb, pc)) + (n,)
        types = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint)
        ok(d.cuLaunchKernel(f, 4, 1, 1, 256, 1, 1, 0, 0, (values, types), 0))
        back = bytearray(4 * n)
        ok(d.cuMemcpyDtoH(back, pc, 4 * n))
        assert array("f", bytes(back)) == array("f", [x + 2.5 for x in range(n)])
        """,
    )


def test_modules_know_their_names_and_reject_what_is_no_code(node: GpusimNode) -> None:
    client(
        node,
        """
        device = start()
        before = free()
        module = ok(d.cuModuleLoadData(PTX))
        assert before - free() == 4 << 20  # the module, and a block for its global
        assert d.cuModuleGetFunction(module, b"unknown")[0] == d.CUresult.CUDA_ERROR_NOT_FOUND
        assert ok(d.cuModuleGetGlobal(module, b"table"))[1] == 256
        assert ok(d.cuModuleGetFunctionCount(module)) == 4
        ok(d.cuModuleUnload(module))
        assert free() == before
        assert d.cuModuleLoadData(b"not a program")[0] == d.CUresult.CUDA_ERROR_INVALID_PTX
        assert d.cuModuleLoadData(bytes([1, 2, 3, 4, 0]))[0] == d.CUresult.CUDA_ERROR_INVALID_IMAGE
        library = ok(d.cuLibraryLoadData(PTX, [], [], 0, [], [], 0))
        kernel = ok(d.cuLibraryGetKernel(library, b"noted"))
        assert ok(d.cuFuncGetName(ok(d.cuKernelGetFunction(kernel)))) == b"noted"
        """,
    )


def test_contexts_cost_memory_and_take_it_all_back(node: GpusimNode) -> None:
    client(
        node,
        """
        device = start()
        before = free()
        other = ok(d.cuCtxCreate(None, 0, device))
        assert before - free() == 256 << 20
        ok(d.cuMemAlloc(100 << 20))
        ok(d.cuMemAlloc(100))
        ok(d.cuCtxDestroy(other))
        assert free() == before
        assert d.cuCtxSetCurrent(other)[0] == d.CUresult.CUDA_ERROR_CONTEXT_IS_DESTROYED
        ok(d.cuDevicePrimaryCtxRelease(device))
        assert d.cuMemAlloc(1)[0] == d.CUresult.CUDA_ERROR_CONTEXT_IS_DESTROYED
        assert ok(d.cuDevicePrimaryCtxGetState(device)) == (0, 0)
        """,
    )


def test_pools_reserve_in_steps_and_give_back_at_a_synchronisation(node: GpusimNode) -> None:
    client(
        node,
        """
        device = start()
        attribute = d.CUmemPool_attribute
        pool = ok(d.cuDeviceGetDefaultMemPool(device))
        def reserved():
            return int(ok(d.cuMemPoolGetAttribute(pool, attribute.CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)))
        stream, before = ok(d.cuStreamCreate(0)), free()
        p = ok(d.cuMemAllocAsync(5 << 20, stream))
        assert reserved() == before - free() == 32 << 20
        data = os.urandom(5 << 20)
        ok(d.cuMemcpyHtoDAsync(p, data, len(data), stream))
        ok(d.cuMemFreeAsync(p, stream))
        assert reserved() == 32 << 20
        ok(d.cuStreamSynchronize(stream))
        assert (reserved(), free()) == (0, before)
        ok(d.cuMemPoolSetAttribute(pool, attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, d.cuuint64_t(2**64 - 1)))
        q = ok(d.cuMemAllocAsync(40 << 20, stream))
        ok(d.cuMemFree(q))
        ok(d.cuStreamSynchronize(stream))
        assert reserved() == 64 << 20
        odd = before % (2 << 20)
        kept = ok(d.cuMemAlloc(before - odd))  # room that somebody needs is given up
        assert (reserved(), free()) == (0, odd)
        """,
    )


def test_virtual_memory_management(node: GpusimNode) -> None:
    client(
        node,
        """
        start()
        before = free()
        prop = d.CUmemAllocationProp()
        prop.type = d.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        prop.location.type = d.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        prop.location.id = 0
        prop.requestedHandleTypes = d.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
        grain = ok(d.cuMemGetAllocationGranularity(prop, d.CUmemAllocationGranularity_flags(0)))
        address = ok(d.cuMemAddressReserve(4 * grain, 0, 0, 0))
        handle = ok(d.cuMemCreate(2 * grain, prop, 0))
        assert before - free() == 2 * grain
        ok(d.cuMemMap(address, 2 * grain, 0, handle, 0))
        access = d.CUmemAccessDesc()
        access.location.type, access.location.id = prop.location.type, 0
        access.flags = d.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        ok(d.cuMemSetAccess(address, 2 * grain, [access], 1))
        data = os.urandom(2 * grain)
        ok(d.cuMemcpyHtoD(address, data, len(data)))
        fd = ok(d.cuMemExportToShareableHandle(handle, prop.requestedHandleTypes, 0))
        again = ok(d.cuMemImportFromShareableHandle(int(fd), prop.requestedHandleTypes))
        ok(d.cuMemMap(int(address) + 2 * grain, 2 * grain, 0, again, 0))
        ok(d.cuMemSetAccess(int(address) + 2 * grain, 2 * grain, [access], 1))
        back = bytearray(len(data))
        ok(d.cuMemcpyDtoH(back, int(address) + 2 * grain, len(data)))
        assert bytes(back) == data
        ok(d.cuMemRelease(handle))
        assert before - free() == 2 * grain
        ok(d.cuMemUnmap(address, 4 * grain))
        assert free() == before
        ok(d.cuMemAddressFree(address, 4 * grain))
        """,
    )


def test_a_captured_graph_lasts_as_long_as_its_longest_path(node: GpusimNode) -> None:
    client(
        node,
        """
        start()
        spin = ok(d.cuModuleGetFunction(ok(d.cuModuleLoadData(PTX)), b"spin_ms_200"))
        one, two = ok(d.cuStreamCreate(1)), ok(d.cuStreamCreate(1))
        fork, join = ok(d.cuEventCreate(0)), ok(d.cuEventCreate(0))
        def launch(stream):
            ok(d.cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, stream, 0, 0))
        ok(d.cuStreamBeginCapture(one, d.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL))
        launch(one)
        ok(d.cuEventRecord(fork, one))
        ok(d.cuStreamWaitEvent(two, fork, 0))
        launch(two)
        launch(one)
        launch(one)
        graph = ok(d.cuStreamEndCapture(one))
        assert ok(d.cuGraphGetNodes(graph, 0))[1] == 4
        run = ok(d.cuGraphInstantiate(graph, 0))
        before, after = ok(d.cuEventCreate(0)), ok(d.cuEventCreate(0))
        ok(d.cuEventRecord(before, one))
        ok(d.cuGraphLaunch(run, one))
        ok(d.cuGraphLaunch(run, one))
        ok(d.cuEventRecord(after, one))
        ok(d.cuStreamSynchronize(one))
        assert round(ok(d.cuEventElapsedTime(before, after)) / 200) == 6
        """,
    )


def test_a_lost_card_answers_no_more(node: GpusimNode) -> None:
    body = CLIENT + textwrap.dedent("""
        start(1)
        pointer = ok(d.cuMemAlloc(1 << 20))
        print("up", flush=True)
        sys.stdin.readline()
        assert d.cuMemAlloc(1 << 20)[0] == d.CUresult.CUDA_ERROR_DEVICE_UNAVAILABLE
        assert d.cuMemcpyDtoH(bytearray(4), pointer, 4)[0] == d.CUresult.CUDA_ERROR_LAUNCH_FAILED
        assert d.cuCtxSynchronize()[0] == d.CUresult.CUDA_ERROR_LAUNCH_FAILED
    """)
    process = node.python(body)
    assert hear(process) == "up"
    node.fault(node.uuids[1], "lost")
    try:
        _, err = process.communicate("go\n", timeout=20)
        assert process.returncode == 0, err
    finally:
        node.fault(node.uuids[1], "heal")
    client(node, "start(1)")


def test_without_a_driver_there_is_no_device(node: GpusimNode) -> None:
    out = client(node, "print(d.cuInit(0)[0].name, ok(d.cuDriverGetVersion()))", GPUSIM_DIR="/nonexistent")
    assert out.split() == ["CUDA_ERROR_NO_DEVICE", "0"]
