"""Many processes of one slice: never over the limit, whoever is killed when, and nothing is lost with the dead."""

from __future__ import annotations

import contextlib
import json
import random
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from egpu_vgpu import usage
from gpusim.state import STATE_FILE, State
from gpusim.testing import wait_for
from vgpu_testing import CONTEXT, GRANULE, ROOT, compiled, simulated, slice_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from gpusim.testing import GpusimNode
    from vgpu_testing import Slice

pytestmark = pytest.mark.native

START = "import sys, json, os, time\nfrom vgpu_testing.driver import *\nd = Driver()\n"


@pytest.fixture(scope="module")
def node() -> Iterator[GpusimNode]:
    """The driver gives a dead process's memory back late, as real ones do."""
    with simulated(release_delay_ms=200) as made:
        yield made


@pytest.fixture(autouse=True)
def empty_card(node: GpusimNode) -> None:
    """The card has let go of what the test before held: tests look at the card's total."""
    wait_for(lambda: node.truth().cards[0].used == 0, what="the card is empty")


@pytest.fixture(scope="module")
def churn(node: GpusimNode) -> Path:
    return compiled("churn", f"-L{node.lib_dir}", "-lcuda")


class Watch:
    """The most that processes ever had on the node's first card, looked at without a pause while waiting."""

    def __init__(self, node: GpusimNode) -> None:
        self._state = State(node.dir / STATE_FILE)
        self._card = self._state.root.cards[0]
        self.most = 0
        self.looks = 0

    def until(self, done: Callable[[], bool], *, seconds: float = 60) -> None:
        end = time.monotonic() + seconds
        while not done():
            assert time.monotonic() < end, "took too long"
            for _ in range(200):
                self.most = max(self.most, self._card.used)
                self.looks += 1


@contextlib.contextmanager
def workers(piece: Slice, program: Path, count: int, rounds: int) -> Iterator[list[subprocess.Popen[str]]]:
    started = [piece.start(str(program), str(seed), str(rounds)) for seed in range(count)]
    try:
        for worker in started:
            assert worker.stdout is not None
            assert worker.stdout.readline() == "ready\n"
        for worker in started:
            assert worker.stdin is not None
            worker.stdin.write("go\n")
            worker.stdin.flush()
        yield started
    finally:
        for worker in started:
            worker.kill()
            worker.wait()
            for pipe in (worker.stdin, worker.stdout, worker.stderr):
                assert pipe is not None
                pipe.close()


@pytest.mark.parametrize("count", [2, 4, 8])
def test_racing_processes_never_pass_the_limit(node: GpusimNode, churn: Path, count: int) -> None:
    limit = count * CONTEXT + 24 * GRANULE
    with slice_of(limit, node=node) as piece, workers(piece, churn, count, 4000) as racing:
        watch = Watch(node)
        for worker in racing:
            assert worker.stdin is not None
            worker.stdin.close()
        watch.until(lambda: all(worker.poll() is not None for worker in racing))
        assert [worker.returncode for worker in racing] == [0] * count
        assert watch.most <= limit
        granted, refused = zip(*(map(int, worker.stdout.readline().split()) for worker in racing), strict=True)
        assert all(granted)
        assert sum(refused) > 0, "the race was none: nobody was ever refused"
        assert piece.processes() == ()


@pytest.mark.parametrize("seed", range(3))
def test_killed_at_random_nothing_is_lost_and_nothing_is_passed(node: GpusimNode, churn: Path, seed: int) -> None:
    limit = 6 * CONTEXT + 24 * GRANULE
    chance = random.Random(seed)  # noqa: S311 - moments to kill at
    with slice_of(limit, node=node) as piece:
        watch = Watch(node)
        with workers(piece, churn, 6, 0) as alive:
            for victim in alive:
                until = time.monotonic() + chance.random() / 50
                watch.until(lambda until=until: time.monotonic() > until)
                victim.send_signal(signal.SIGKILL)
        assert watch.most <= limit
        out = piece.python(f"{START}print(len(d.fill({GRANULE})))")
        assert int(out) == (limit - CONTEXT) // GRANULE


def test_a_killed_process_frees_its_memory_within_a_second(node: GpusimNode) -> None:
    with slice_of(2 * CONTEXT + 8 * GRANULE, node=node) as piece:
        holder = piece.start(
            sys.executable, "-c", f"{START}d.fill({GRANULE})\nprint('full', flush=True)\ntime.sleep(60)"
        )
        assert holder.stdout is not None
        holder.stdout.readline()
        wanting = piece.start(
            sys.executable,
            "-c",
            "import sys, time\nfrom vgpu_testing.driver import *\nd = Driver(context=False)\n"
            "print(d.retain(), flush=True)\nsys.stdin.readline()\nstart = time.monotonic()\n"
            f"d.retain()\nprint(d.alloc({8 * GRANULE}) > 0, time.monotonic() - start)",
        )
        assert wanting.stdout is not None
        assert wanting.stdout.readline() == "2\n"
        holder.kill()
        holder.communicate()
        out, _ = wanting.communicate("\n", timeout=10)
        granted, seconds = out.split()
        assert granted == "True"
        assert 0.3 < float(seconds) < 1.0


FORK = f"""{START}
held = d.fill({GRANULE}, most=4)
child = os.fork()
if child == 0:
    own = Driver(context=False)
    answer = own.retain()
    os._exit(answer)
status = os.waitpid(child, 0)[1]
print(json.dumps([len(held), d.free(held.pop()), len(d.fill({GRANULE}))]))
"""


def test_a_forked_child_holds_nothing_of_its_parent(node: GpusimNode) -> None:
    with slice_of(CONTEXT + 8 * GRANULE, node=node) as piece:
        assert json.loads(piece.python(FORK)) == [4, 0, 5]


LIVES_ON = f"""{START}
d.fill({GRANULE})
if os.fork() == 0:
    if sys.argv[1] == "exec":
        os.execv(sys.executable, [sys.executable, "-c", "import sys; print('child', flush=True); sys.stdin.read()"])
    if sys.argv[1] == "daemon":
        os.setsid()
        os.closerange(3, 256)
    print("child", flush=True)
    sys.stdin.read()
    os._exit(0)
os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("way", ["fork", "exec", "daemon"])
def test_a_child_does_not_keep_its_dead_parent_alive(node: GpusimNode, way: str) -> None:
    limit = CONTEXT + 8 * GRANULE
    with slice_of(limit, node=node) as piece:
        parent = piece.start(sys.executable, "-c", LIVES_ON, way)
        assert parent.stdout is not None
        assert parent.stdout.readline() == "child\n"
        wait_for(lambda: piece.processes() == (), what="the parent's slot to be dead")
        assert int(piece.python(f"{START}print(len(d.fill({GRANULE})))")) == 8
        parent.communicate("", timeout=10)


def test_exec_gives_back_what_the_program_before_held(node: GpusimNode) -> None:
    with slice_of(CONTEXT + 8 * GRANULE, node=node) as piece:
        again = f"{START}print(len(d.fill({GRANULE})))"
        become = f"os.execv(sys.executable, [sys.executable, '-c', {again!r}])"
        code = f"{START}print(len(d.fill({GRANULE})), flush=True)\n{become}"
        assert piece.python(code).split() == ["8", "8"]


def test_closing_every_descriptor_changes_nothing(node: GpusimNode) -> None:
    with slice_of(CONTEXT + 8 * GRANULE, node=node) as piece:
        code = f"{START}d.fill({GRANULE}, most=2)\nos.closerange(3, 1024)\nprint(len(d.fill({GRANULE})), flush=True)\n"
        process = piece.start(sys.executable, "-c", f"{code}sys.stdin.read()")
        assert process.stdout is not None
        assert process.stdout.readline() == "6\n"
        assert [p.cards[0].charged for p in piece.processes()] == [CONTEXT + 8 * GRANULE]
        process.communicate("", timeout=10)


def test_a_full_region_refuses_and_a_dead_slot_is_taken_over(node: GpusimNode) -> None:
    with slice_of(64 * CONTEXT // 16, node=node, slots=2) as piece:
        holders = [
            piece.start(sys.executable, "-c", f"{START}print('in', flush=True)\nsys.stdin.read()") for _ in range(2)
        ]
        for holder in holders:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "in\n"
        third = "from vgpu_testing.driver import *\nd = Driver(context=False)\nprint(d.retain(), reason())"
        assert piece.python(third) == "2 the usage region has no free slot for another process\n"
        holders[0].kill()
        holders[0].communicate()
        wait_for(lambda: piece.python(third) == "0 \n", what="a slot")
        holders[1].communicate("", timeout=10)


def test_killed_after_every_single_instruction_the_books_are_right(tmp_path: Path) -> None:
    region = tmp_path / "usage"
    sources = [str(ROOT / "libvgpu" / "src" / f"{name}.c") for name in ("ledger", "region", "usage", "sys")]
    program = tmp_path / "stepped"
    flags = [
        "-std=gnu11", "-O2", "-mcx16", "-D_GNU_SOURCE", f'-DEGPU_USAGE_PATH="{region}"', "-DEGPU_REUSE_DELAY_NS=0ull",
        f"-I{ROOT}/libvgpu/include", f"-I{ROOT}/libvgpu/src", str(ROOT / "tests/native/c/stepped.c"),
    ]  # fmt: skip
    subprocess.run(["cc", *flags, *sources, "-o", str(program)], check=True)
    usage.create(region, "stepped", ["GPU-00000000-0000-0000-0000-000000000000"], slots=4)
    result = subprocess.run([str(program)], capture_output=True, text=True, timeout=100, check=False)
    assert result.returncode == 0, result.stdout
    assert int(result.stdout) > 200
