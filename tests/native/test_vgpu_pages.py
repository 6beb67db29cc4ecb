"""Where limits come from: the page and nothing else; what happens when it is missing, broken or half written."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from egpu_vgpu import limits, usage
from egpu_vgpu._native import ffi, lib
from vgpu_testing import CONTEXT, GRANULE, SLICE_UID, compiled, simulated, slice_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gpusim.testing import GpusimNode
    from vgpu_testing import Slice

pytestmark = pytest.mark.native

LIMIT = CONTEXT + 4 * GRANULE
REFUSED = "from vgpu_testing.driver import *\nd = Driver(context=False)\nprint(d.retain(), reason())"
START = "import sys\nfrom vgpu_testing.driver import *\nd = Driver()\n"


@pytest.fixture(scope="module")
def node() -> Iterator[GpusimNode]:
    with simulated() as made:
        yield made


@pytest.fixture
def piece(node: GpusimNode) -> Iterator[Slice]:
    with slice_of(LIMIT, node=node) as made:
        yield made


def _patch(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def _page(memory: int, uuid: str = "GPU-00000000-0000-0000-0000-000000000000") -> limits.LimitsPage:
    return limits.LimitsPage(slice_uid=SLICE_UID, cards=(limits.CardLimit(uuid=uuid, memory=memory),))


@pytest.mark.parametrize(
    ("name", "file", "offset", "data", "reason"),
    [
        ("magic", "limits", 0, b"XXXX", "the limits page /etc/elasticgpu/limits is broken"),
        ("version", "limits", 4, b"\7", "the limits page /etc/elasticgpu/limits is broken"),
        ("one bit of a limit", "limits", 96 + 48, b"\1", "the limits page /etc/elasticgpu/limits is broken"),
        ("region's magic", "usage", 0, b"XXXX", "the usage region /etc/elasticgpu/usage is broken"),
        ("region's owner", "usage", 24, b"XXXX", "the usage region /etc/elasticgpu/usage belongs to another slice"),
        ("region's slots", "usage", 16, b"\xff\xff\xff\xff", "the usage region /etc/elasticgpu/usage is broken"),
    ],
)
def test_a_broken_file_refuses_everything(
    piece: Slice, name: str, file: str, offset: int, data: bytes, reason: str
) -> None:
    _patch(piece.folder / file, offset, data)
    assert piece.python(REFUSED) == f"2 {reason}\n", name
    assert piece.used() == 0


def test_a_missing_file_refuses_everything(piece: Slice) -> None:
    missing = piece.python(REFUSED, limits_page=False)
    assert missing == "2 the limits page /etc/elasticgpu/limits is missing\n"
    missing = piece.python(REFUSED, usage_region=False)
    assert missing == "2 the usage region /etc/elasticgpu/usage is missing or not writable\n"


def test_a_short_page_refuses_everything(piece: Slice) -> None:
    with piece.limits.open("r+b") as file:
        file.truncate(4096)
    assert piece.python(REFUSED) == "2 the limits page /etc/elasticgpu/limits is broken\n"


def test_a_card_that_is_not_on_the_page_is_refused(piece: Slice) -> None:
    limits.write(piece.limits, _page(1 << 30))
    assert piece.python(REFUSED) == "2 the card is not part of the slice\n"


def test_a_page_that_breaks_later_leaves_the_last_good_limits(piece: Slice) -> None:
    process = piece.start(sys.executable, "-c", f"{START}for _ in sys.stdin: print(len(d.fill({GRANULE})), flush=True)")
    assert process.stdin is not None
    assert process.stdout is not None

    def ask() -> str:
        process.stdin.write("\n")
        process.stdin.flush()
        return process.stdout.readline().strip()

    assert ask() == "4"
    _patch(piece.limits, 0, b"\0" * 8192)
    assert ask() == "0"
    piece.resize(LIMIT + GRANULE, context=CONTEXT)
    process.communicate(timeout=10)


def test_a_writer_that_dies_midway_leaves_the_former_copy(piece: Slice) -> None:
    piece.resize(LIMIT + GRANULE, context=CONTEXT)
    current = limits.read(piece.limits)
    assert current.generation == 2
    _patch(piece.limits, 16, (3).to_bytes(8, "little"))  # the older copy, its checksum not yet
    assert limits.read(piece.limits) == current
    assert piece.python(f"{START}print(len(d.fill({GRANULE})))") == "5\n"


ENVIRONMENTS = [
    {"CUDA_DISABLE_CONTROL": "true"},
    {"CUDA_DEVICE_MEMORY_LIMIT": "100g", "CUDA_DEVICE_MEMORY_LIMIT_0": "100g"},
    {"EGPU_LIMITS": "/tmp/other", "EGPU_DISABLE": "1", "ELASTICGPU_DISABLE": "1"},
    {"LD_PRELOAD": ""},
    {"CUDA_VISIBLE_DEVICES": "0"},
]


@pytest.mark.parametrize("env", ENVIRONMENTS, ids=lambda env: next(iter(env)))
def test_no_environment_variable_changes_a_limit(piece: Slice, env: dict[str, str]) -> None:
    assert piece.python(f"{START}print(len(d.fill({GRANULE})))", env=env) == "4\n"


def test_an_empty_environment_changes_nothing(piece: Slice) -> None:
    program = compiled("reach", "-ldl")
    keep = [f"{name}={piece.node.env[name]}" for name in ("GPUSIM_DIR", "LD_LIBRARY_PATH")]
    assert piece.run("env", "-i", *keep, str(program), "dlopen", str(5 * GRANULE)) == "2\n"
    absolute = f"import ctypes\nctypes.CDLL('{piece.node.lib_dir}/libcuda.so.1')\n"
    assert piece.python(f"{absolute}{START}print(len(d.fill({GRANULE})))") == "4\n"


def test_the_library_leaves_no_trace_in_a_program_that_uses_no_card(piece: Slice) -> None:
    code = (
        "import os, signal, sys\nbefore = os.umask(0o27)\nos.umask(before)\n"
        "print(before, sorted(os.listdir('/proc/self/fd'))[:4], signal.getsignal(signal.SIGUSR1),\n"
        "      'LD_PRELOAD' in os.environ,\n"
        "      len(os.listdir('/proc/self/task')))"
    )
    alone = piece.node.run(code)
    assert piece.python(code) == alone
    assert piece.processes() == ()


def test_a_card_is_found_by_uuid_when_the_program_sees_another_order() -> None:
    card = {"model": "NVIDIA-T4", "memory_mib": 1024, "reserved_mib": 0, "context_bytes": CONTEXT, "module_bytes": 0}
    with simulated(cards=[card, card]) as node, slice_of(LIMIT, node=node) as piece:
        both = (
            limits.CardLimit(uuid=node.uuids[0], memory=CONTEXT + GRANULE, context=CONTEXT),
            limits.CardLimit(uuid=node.uuids[1], memory=CONTEXT + 3 * GRANULE, context=CONTEXT),
        )
        limits.write(piece.limits, limits.LimitsPage(slice_uid=SLICE_UID, cards=both))
        piece.usage.unlink()
        usage.create(piece.usage, SLICE_UID, node.uuids)
        for order, fits in {"0,1": "1", "1,0": "3", node.uuids[1]: "3"}.items():
            out = piece.python(f"{START}print(len(d.fill({GRANULE})))", env={"CUDA_VISIBLE_DEVICES": order})
            assert out.strip() == fits, order


# ---- the Python side -------------------------------------------------------------------------------------------------


def test_write_creates_updates_in_place_and_repeats_nothing(tmp_path: Path) -> None:
    path = tmp_path / "limits"
    first = limits.write(path, _page(1))
    inode = path.stat().st_ino
    assert (first.generation, path.stat().st_size, oct(path.stat().st_mode & 0o777)) == (1, 8192, "0o644")
    written = path.stat().st_mtime_ns
    assert limits.write(path, _page(1)) == first
    assert path.stat().st_mtime_ns == written
    for generation in range(2, 6):
        assert limits.write(path, _page(generation)).generation == generation
        assert limits.read(path).cards[0].memory == generation
    assert (path.stat().st_ino, path.stat().st_size) == (inode, 8192)


@pytest.mark.parametrize(
    ("page", "complaint"),
    [
        (_page(-1), "must be bytes"),
        (_page(1, uuid="0"), "is not of the form"),
        (limits.LimitsPage(slice_uid="", cards=_page(1).cards), "slice UID"),
        (limits.LimitsPage(slice_uid="x" * 64, cards=_page(1).cards), "slice UID"),
        (limits.LimitsPage(slice_uid="x", cards=()), "0 cards"),
        (limits.LimitsPage(slice_uid="x", cards=_page(1).cards * 2), "named twice"),
    ],
)
def test_a_page_that_cannot_be_right_is_not_written(tmp_path: Path, page: limits.LimitsPage, complaint: str) -> None:
    with pytest.raises(limits.LimitsError, match=complaint):
        limits.write(tmp_path / "limits", page)
    assert not (tmp_path / "limits").exists()


def test_what_a_tenant_writes_does_not_hurt_the_reader(tmp_path: Path) -> None:
    path = tmp_path / "usage"
    usage.create(path, "x", [_page(1).cards[0].uuid], slots=4)
    os.truncate(path, 4096 + 100)
    assert usage.read(path) == ()
    path.write_bytes(b"\xff" * 4096 * 3)
    with pytest.raises(usage.UsageError, match="not a usage region"):
        usage.read(path)
    path.unlink()
    path.symlink_to("/etc/passwd")
    with pytest.raises(usage.UsageError, match="cannot open"):
        usage.read(path)


def test_the_region_is_sparse_and_belongs_to_one_slice(tmp_path: Path) -> None:
    path = tmp_path / "usage"
    usage.create(path, "x", [_page(1).cards[0].uuid])
    assert path.stat().st_size == 4096 * 1025
    assert path.stat().st_blocks * 512 <= 8192
    assert oct(path.stat().st_mode & 0o777) == "0o666"
    usage.create(path, "x", [_page(1).cards[0].uuid])
    with pytest.raises(usage.UsageError, match="belongs to slice 'x'"):
        usage.create(path, "y", [_page(1).cards[0].uuid])


def test_both_sides_see_the_same_layout(tmp_path: Path) -> None:
    """The system compiler's offsets, printed by a program, are those of the Python module."""
    fields = {
        "egpu_limits_copy": ["generation", "slice_uid", "burst", "cards", "checksum"],
        "egpu_limits_card": ["uuid", "memory", "core", "sharing", "context"],
        "egpu_usage_header": ["slot_count", "slice_uid", "high_water", "cards", "uuids"],
        "egpu_ledger": ["bytes", "op", "context", "turn"],
        "egpu_slot": ["state", "reason", "pid", "pid_namespace", "start_time", "dead_since", "accounts", "kinds"],
        "egpu_account": ["sequence", "applied", "charges"],
    }
    wanted = [(name, field) for name, members in fields.items() for field in members]
    prints = "".join(f'printf("%zu\\n", offsetof(struct {name}, {field}));' for name, field in wanted)
    source = tmp_path / "layout.c"
    source.write_text(f'#include <stdio.h>\n#include "egpu_abi.h"\nint main(void) {{ {prints} return 0; }}\n')
    include = limits.__file__.replace("egpu_vgpu/limits.py", "include")
    subprocess.run(["cc", f"-I{include}", str(source), "-o", str(tmp_path / "layout")], check=True)
    out = subprocess.run([str(tmp_path / "layout")], check=True, capture_output=True, text=True).stdout
    assert [int(line) for line in out.split()] == [ffi.offsetof(f"struct {name}", field) for name, field in wanted]
    assert lib.EGPU_PAGE == ffi.sizeof("struct egpu_slot") == ffi.sizeof("struct egpu_limits_copy")
