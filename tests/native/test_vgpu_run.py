"""egpu-run: a slice for a program on a workstation."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest

from egpu_vgpu.run import RunError, quantity
from vgpu_testing import CONTEXT, GRANULE, IMPORTS, MIB, simulated

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

    from gpusim.testing import GpusimNode

pytestmark = pytest.mark.native

START = "import sys\nfrom vgpu_testing.driver import *\nd = Driver()\n"
FILL = f"{START}print(len(d.fill({GRANULE})), flush=True)\nsys.stdin.read()"


@pytest.fixture(scope="module")
def node() -> Iterator[GpusimNode]:
    with simulated() as made:
        yield made


def _start(node: GpusimNode, *words: str) -> subprocess.Popen[str]:
    return node.start([sys.executable, "-m", "egpu_vgpu.run", *words], PYTHONPATH=IMPORTS)


@pytest.mark.parametrize(
    ("text", "size"), [("1", 1), ("4Gi", 4 << 30), ("1.5Gi", 3 << 29), ("500M", 500_000_000), ("2Ki", 2048)]
)
def test_quantities(text: str, size: int) -> None:
    assert quantity(text) == size


@pytest.mark.parametrize("text", ["", "Gi", "-1", "4GB", "4 Gi"])
def test_what_is_no_quantity_says_what_to_write(text: str) -> None:
    with pytest.raises(RunError, match="4Gi, 512Mi"):
        quantity(text)


def test_a_program_is_held_shares_by_name_and_is_listed(node: GpusimNode) -> None:
    memory = f"{(2 * CONTEXT + 6 * GRANULE) // MIB}Mi"
    name = f"test-{os.getpid()}"
    command = ["--memory", memory, "--name", name, "--", sys.executable, "-c", FILL]
    first = _start(node, *command)
    assert first.stdout is not None
    assert first.stdout.readline() == f"{(CONTEXT + 6 * GRANULE) // GRANULE}\n"
    listed, _ = _start(node, "ps").communicate(timeout=20)
    assert f"{name} " in listed
    assert f" {first.pid} " in listed
    second, complaint = _start(node, *command).communicate("", timeout=20)
    assert second == ""
    assert "AssertionError: the slice's memory limit is reached" in complaint
    first.communicate("", timeout=20)


def test_mistakes_are_one_line(node: GpusimNode) -> None:
    for words, complaint in {
        ("--memory", "4GB", "--", "true"): "egpu-run: '4GB' is no amount of memory",
        ("--memory", "4Gi", "--card", "7", "--", "true"): "egpu-run: there is no card 7",
        ("--memory", "4Gi", "--core", "0", "--", "true"): "core 0 must be a percentage",
        ("--memory", "4Gi", "--", "/no/such/program"): "No such file or directory",
    }.items():
        process = _start(node, *words)
        _, text = process.communicate(timeout=20)
        assert process.returncode == 127
        assert complaint in text
        assert text.count("\n") == 1
