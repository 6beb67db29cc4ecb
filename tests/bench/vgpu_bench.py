"""What the library adds to a launch and to an allocation: with and without, in turns, in one run.

    python tests/bench/vgpu_bench.py [--peer-lib PATH] [--repeat N] [--json FILE]

Allocations and starts run on the simulated driver, launches on a driver that does nothing. Each figure is the median
over the turns of each turn's least round (of starts: their 99th percentile); `added` is the difference, `spread` the
largest less the least of the turns without. A peer is any other library that is preloaded by LD_PRELOAD; it gets no
slice.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / folder) for folder in ("libvgpu", "tests/support", "tests/gpusim")]

from egpu_vgpu.limits import UNLIMITED  # noqa: E402 - the path comes first
from vgpu_testing import GRANULE, SOURCES, Slice, compiled, simulated, slice_of  # noqa: E402

LIVE = (0, 1_000, 10_000, 100_000)
THREADS = (1, 8)
STARTS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One comparison, in ns."""

    name: str
    without: float
    with_library: float
    peer: float | None
    spread: float
    turns: int

    @property
    def added(self) -> float:
        return self.with_library - self.without


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer-lib", type=Path, help="another preloaded library to measure beside")
    parser.add_argument("--repeat", type=int, default=7, help="turns")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    options = parser.parse_args()
    card = {"model": "NVIDIA-H100-80GB", "module_bytes": 0}
    with (
        simulated(cards=[card]) as node,
        slice_of(70 << 30, node=node) as limited,
        slice_of(UNLIMITED, node=node) as free,
        slice_of(79 << 30, node=node, slots=1024) as large,
    ):
        figures = [*_allocations(limited, options), *_launches(limited, free, options), _starts(large, options)]
    for figure in figures:
        peer = f"  peer {figure.peer - figure.without:+8.1f}" if figure.peer is not None else ""
        sys.stdout.write(
            f"{figure.name:34} without {figure.without:8.1f}  added {figure.added:+8.1f} ns{peer}"
            f"  (n={figure.turns}, spread {figure.spread:.1f})\n"
        )
    if options.json:
        rows = [{**asdict(figure), "added": figure.added} for figure in figures]
        options.json.write_text(json.dumps(rows, indent=2))
    return 0


def _allocations(piece: Slice, options: argparse.Namespace) -> list[Figure]:
    program = compiled("bench", f"-L{piece.node.lib_dir}", "-lcuda")
    figures = [
        _compare(f"alloc+free of 1 KiB, {live} live", [str(program), str(live), "1024"], piece, options)
        for live in LIVE
    ]
    return [*figures, _compare("alloc+free of 2 MiB, 1000 live", [str(program), "1000", str(GRANULE)], piece, options)]


def _launches(limited: Slice, free: Slice, options: argparse.Namespace) -> list[Figure]:
    folder = ROOT / "build" / "vgpu-tests" / "empty"
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / "libcuda.so.1"
    command = ["cc", "-O2", "-DDRIVER", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", str(SOURCES / "bench_launch.c")]
    subprocess.run([*command, "-o", str(library)], check=True)
    program = compiled("bench_launch", str(library), f"-Wl,-rpath,{folder}", "-lpthread")
    env = {"LD_LIBRARY_PATH": str(folder)}
    return [
        _compare(f"cuLaunchKernel, {name}, {count} threads", [str(program), str(count)], piece, options, env)
        for name, piece in (("limit", limited), ("no limit", free))
        for count in THREADS
    ]


def _starts(piece: Slice, options: argparse.Namespace) -> Figure:
    program = compiled("bench_start", f"-L{piece.node.lib_dir}", "-lcuda")
    return _compare(f"{STARTS} starts at once, p99", [str(program), str(STARTS)], piece, options, column=1)


def _compare(
    name: str,
    command: list[str],
    piece: Slice,
    options: argparse.Namespace,
    env: dict[str, str] | None = None,
    *,
    column: int = 0,
) -> Figure:
    extra = env or {}
    turns: dict[str, list[float]] = {"without": [], "with": [], "peer": []}
    for _ in range(options.repeat):
        turns["without"].append(_figure(piece.node.start(command, **extra), column))
        turns["with"].append(_figure(piece.start(*command, env=extra), column))
        if options.peer_lib:
            turns["peer"].append(_figure(piece.node.start(command, **extra, LD_PRELOAD=str(options.peer_lib)), column))
    return Figure(
        name=name,
        without=statistics.median(turns["without"]),
        with_library=statistics.median(turns["with"]),
        peer=statistics.median(turns["peer"]) if turns["peer"] else None,
        spread=max(turns["without"]) - min(turns["without"]),
        turns=options.repeat,
    )


def _figure(process: subprocess.Popen[str], column: int) -> float:
    out, err = process.communicate(timeout=120)
    if process.returncode != 0:
        raise RuntimeError(f"exit {process.returncode}: {err}")
    return float(out.split()[column])


if __name__ == "__main__":
    raise SystemExit(main())
