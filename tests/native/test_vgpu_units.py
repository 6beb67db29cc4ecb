"""The library's own parts under the sanitizers: the map against a model, threads and processes on one account."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from egpu_vgpu import usage
from vgpu_testing import ROOT, SOURCES

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.native

LIBVGPU = ROOT / "libvgpu"
PARTS = [str(LIBVGPU / "src" / f"{name}.c") for name in ("ledger", "region", "usage", "map", "sys")]


@pytest.fixture(params=["address,undefined", "thread"])
def program(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    usage.create(tmp_path / "usage", "units", ["GPU-00000000-0000-0000-0000-000000000000"], slots=16)
    flags = ["-std=gnu11", "-O1", "-g", "-mcx16", "-D_GNU_SOURCE", f"-I{LIBVGPU}/include", f"-I{LIBVGPU}/src"]
    flags += [f"-fsanitize={request.param}", "-fno-sanitize-recover=all", f'-DEGPU_USAGE_PATH="{tmp_path}/usage"']
    target = tmp_path / "units"
    subprocess.run(["cc", *flags, str(SOURCES / "units.c"), *PARTS, "-lpthread", "-o", str(target)], check=True)
    return target


@pytest.mark.parametrize("part", ["map", "threads", "processes"])
def test_parts_are_right_and_clean(program: Path, part: str) -> None:
    run = subprocess.run([str(program), part, "7"], capture_output=True, text=True, timeout=100, check=False)
    assert (run.returncode, run.stdout) == (0, "ok\n"), run.stderr
    assert run.stderr == ""
