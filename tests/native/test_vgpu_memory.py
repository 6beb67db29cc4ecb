"""What a slice may allocate, and what it is told that it has. The truth is the simulated driver's."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest

from egpu_vgpu.limits import UNLIMITED
from vgpu_testing import CONTEXT, GRANULE, MIB, simulated, slice_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpusim.testing import GpusimNode
    from vgpu_testing import Slice

pytestmark = pytest.mark.native

LIMIT = CONTEXT + 16 * GRANULE
START = "import sys, json\nfrom vgpu_testing.driver import *\nd = Driver()\n"


@pytest.fixture(scope="module")
def node() -> Iterator[GpusimNode]:
    with simulated() as made:
        yield made


@pytest.fixture
def piece(node: GpusimNode) -> Iterator[Slice]:
    with slice_of(LIMIT, node=node) as made:
        yield made


@pytest.mark.parametrize(
    ("name", "call", "fits"),
    [
        ("one granule each", f"d.alloc({GRANULE})", 16),
        ("three granules each", f"d.alloc({3 * GRANULE})", 5),
        ("a byte over a granule takes two", f"d.alloc({GRANULE} + 1)", 8),
        ("half a granule shares", f"d.alloc({GRANULE // 2})", 32),
        ("a byte over half takes one", f"d.alloc({GRANULE // 2} + 1)", 16),
        ("small ones share", "d.alloc(64 << 10)", 16 * 32),
        ("managed", f"d.managed({GRANULE})", 16),
        ("pitch", "d.pitch(4096, 1024)", 8),
        ("array", "d.array(1024, 1024)", 8),
        ("physical", f"d.create({GRANULE})", 16),
        ("all at once", f"d.alloc({16 * GRANULE})", 1),
        ("one too many at once", f"d.alloc({17 * GRANULE})", 0),
    ],
)
def test_the_limit_is_exact_at_every_granule(piece: Slice, name: str, call: str, fits: int) -> None:
    out = piece.python(
        f"{START}n = 0\nwhile (last := {call}) > 0: n += 1\nprint(json.dumps([n, last, d.info()]), flush=True)\n"
    )
    count, last, (free, total) = json.loads(out)
    assert (count, last) == (fits, -2), name
    assert total == LIMIT
    assert free < 3 * GRANULE or fits == 0
    assert piece.peak() <= LIMIT


def test_what_does_not_fit_takes_nothing(piece: Slice) -> None:
    out = piece.python(
        f"{START}before = d.info()\nrefused = d.alloc({17 * GRANULE})\n"
        f"print(json.dumps([before, refused, reason(), d.info(), len(d.fill({GRANULE}))]))\n"
    )
    before, refused, why, after, fits = json.loads(out)
    assert refused == -2
    assert "limit is reached" in why
    assert before == after == [16 * GRANULE, LIMIT]
    assert fits == 16


def test_everything_freed_is_everything_there(piece: Slice) -> None:
    out = piece.python(
        f"{START}before = d.info()\n"
        f"for size in ({GRANULE}, 512, 100_000, 3 * {MIB}):\n"
        "    held = d.fill(size)\n    assert len(held) > 2, size\n    assert not any(map(d.free, held))\n"
        "print(json.dumps([before, d.info()]))\n"
    )
    before, after = json.loads(out)
    assert before == after


def test_freed_twice_and_unknown_addresses_reach_the_driver(piece: Slice) -> None:
    out = piece.python(
        f"{START}a = d.alloc({GRANULE})\n"
        f"print(json.dumps([d.free(a), d.free(a), d.free(0), d.free(12345), d.info()[0], len(d.fill({GRANULE}))]))"
    )
    first, second, null, unknown, free, fits = json.loads(out)
    assert (first, null) == (0, 0)
    assert second != 0
    assert unknown != 0
    assert (free, fits) == (16 * GRANULE, 16)


def test_physical_memory_counts_until_its_last_mapping_goes(piece: Slice) -> None:
    size = 8 * GRANULE
    out = piece.python(
        f"{START}h = d.create({size})\na = d.map(h, {size})\nr = d.release(h)\nmapped = d.info()[0]\n"
        f"more = d.create({9 * GRANULE})\nu = d.unmap(a, {size})\nprint(json.dumps([r, mapped, more, u, d.info()[0]]))"
    )
    assert json.loads(out) == [0, 8 * GRANULE, -2, 0, 16 * GRANULE]


def test_a_pool_is_charged_while_it_holds(piece: Slice) -> None:
    out = piece.python(
        f"{START}held = []\nwhile (a := d.alloc_async({GRANULE})) > 0: held.append(a)\n"
        "full = d.info()[0]\nassert not any(map(d.free_async, held))\nd.cuda.cuCtxSynchronize()\n"
        "print(json.dumps([len(held), a, full, d.info()[0]]))"
    )
    count, last, full, free = json.loads(out)
    assert (count, last) == (16, -2)
    assert full == 0
    assert free == 16 * GRANULE


def test_a_context_is_charged_and_given_back(piece: Slice) -> None:
    out = piece.python(
        f"{START}import ctypes\nd.fill({GRANULE}, most=4)\nbusy = d.info()[0]\n"
        "assert d.cuda.cuDevicePrimaryCtxReset_v2(0) == 0\nassert d.retain() == 0\n"
        "print(json.dumps([busy, d.info()[0]]))"
    )
    assert json.loads(out) == [12 * GRANULE, 16 * GRANULE]


PTX = ".version 7.0\\n.target sm_70\\n.address_size 64\\n.visible .entry tick() { ret; }\\n"


def test_modules_are_measured_charged_and_given_back() -> None:
    card = {"model": "NVIDIA-T4", "reserved_mib": 0, "context_bytes": CONTEXT, "module_bytes": 3 * GRANULE}
    with simulated(cards=[card]) as node, slice_of(LIMIT, node=node) as piece:
        out = piece.python(
            f"{START}free, modules, image = [d.info()[0]], [], b'{PTX}\\0'\n"
            "while True:\n    m = c_void_p()\n    r = d.cuda.cuModuleLoadData(byref(m), image)\n"
            "    if r: break\n    modules.append(m)\n"
            "free.append(d.info()[0])\nassert not any(map(d.cuda.cuModuleUnload, modules))\nfree.append(d.info()[0])\n"
            "print(json.dumps([r, len(modules), free]))"
        )
        assert json.loads(out) == [2, 5, [16 * GRANULE, GRANULE, 16 * GRANULE]]


def test_a_context_is_measured_where_its_size_is_not_known(node: GpusimNode) -> None:
    with slice_of(LIMIT, node=node, context=0) as piece:
        out = piece.python(f"{START}print(json.dumps([d.info(), len(d.fill({GRANULE}))]))")
        assert json.loads(out) == [[16 * GRANULE, LIMIT], 16]


def test_a_context_that_does_not_fit_is_refused(node: GpusimNode) -> None:
    with slice_of(CONTEXT - 1, node=node) as piece:
        out = piece.python(f"{START.replace('Driver()', 'Driver(context=False)')}print(d.retain(), reason())")
        assert out == "2 the slice's memory limit is reached\n"
        assert piece.used() == 0


def test_the_card_looks_like_the_slice(piece: Slice) -> None:
    out = piece.python(
        f"{START}import pynvml\nheld = d.alloc({3 * GRANULE})\npynvml.nvmlInit()\n"
        "card = pynvml.nvmlDeviceGetHandleByIndex(0)\n"
        "v1 = pynvml.nvmlDeviceGetMemoryInfo(card)\n"
        "v2 = pynvml.nvmlDeviceGetMemoryInfo(card, version=pynvml.nvmlMemory_v2)\n"
        "rows = pynvml.nvmlDeviceGetComputeRunningProcesses(card)\n"
        "import os\n"
        "print(json.dumps([d.total(), d.info(), [v1.total, v1.free, v1.used], [v2.total, v2.free, v2.used],\n"
        "    [[r.pid == os.getpid(), r.usedGpuMemory] for r in rows]]))"
    )
    used = CONTEXT + 3 * GRANULE
    assert json.loads(out) == [
        LIMIT,
        [LIMIT - used, LIMIT],
        [LIMIT, LIMIT - used, used],
        [LIMIT, LIMIT - used, used],
        [[True, used]],
    ]


def test_no_limit_shows_the_card_itself(node: GpusimNode) -> None:
    with slice_of(UNLIMITED, node=node) as piece:
        out = piece.python(f"{START}print(json.dumps([d.total(), d.info()[1], d.alloc({GRANULE}) > 0]))")
        assert json.loads(out) == [4096 * MIB, 4096 * MIB, True]


def test_a_resize_takes_effect_in_a_running_process(piece: Slice) -> None:
    process = piece.start(
        sys.executable,
        "-c",
        f"{START}for line in sys.stdin: print(len(d.fill({GRANULE})), d.info()[1], flush=True)",
    )
    assert process.stdin is not None
    assert process.stdout is not None

    def ask() -> list[int]:
        process.stdin.write("\n")
        process.stdin.flush()
        return [int(word) for word in process.stdout.readline().split()]

    assert ask() == [16, LIMIT]
    piece.resize(LIMIT + 3 * GRANULE, context=CONTEXT)
    assert ask() == [3, LIMIT + 3 * GRANULE]
    piece.resize(LIMIT - GRANULE, context=CONTEXT)
    assert ask() == [0, LIMIT - GRANULE]
    process.communicate(timeout=10)
    assert process.returncode == 0
