"""The library as a file: what it exports, what it needs, and which systems can load it."""

from __future__ import annotations

import re
import subprocess

import pytest

from egpu_vgpu import library_path
from vgpu_testing import ROOT

pytestmark = pytest.mark.native


def _tool(*command: str) -> str:
    return subprocess.run([*command, str(library_path())], check=True, capture_output=True, text=True).stdout


def _hooked() -> set[str]:
    text = (ROOT / "libvgpu" / "src" / "hooks.def").read_text()
    text = text[text.index("#endif\n\n/*") :]
    cuda = re.findall(r"^CU\(\d+, \w+, [01], (\w+),", text, re.MULTILINE)
    return {*cuda, *re.findall(r"^NV\((\w+),", text, re.MULTILINE)}


def test_exports_are_the_hooks_and_the_lookups() -> None:
    exported = {line.split()[-1] for line in _tool("nm", "-D", "--defined-only").splitlines()}
    assert exported == {*_hooked(), "dlsym", "dlvsym", "egpu_vgpu_reason"}


def test_exports_have_no_version() -> None:
    assert "@" not in _tool("nm", "-D", "--defined-only", "--with-symbol-versions")


def test_it_needs_libc_alone() -> None:
    needed = re.findall(r"NEEDED.*\[(.*)\]", _tool("readelf", "-d"))
    assert set(needed) <= {"libc.so.6", "ld-linux-x86-64.so.2"}


def test_it_loads_on_glibc_2_17() -> None:
    versions = {tuple(map(int, found.split("."))) for found in re.findall(r"GLIBC_([0-9.]+)", _tool("readelf", "-V"))}
    assert max(versions) <= (2, 17)


@pytest.mark.parametrize(
    "symbol", ["Py", "exit", "_exit", "abort", "umask", "sigaction", "signal", "setenv", "getenv", "printf", "write"]
)
def test_it_cannot_do_what_a_guest_must_not(symbol: str) -> None:
    undefined = [line.split()[-1].split("@")[0] for line in _tool("nm", "-D", "--undefined-only").splitlines()]
    assert not [name for name in undefined if name == symbol or (symbol == "Py" and name.startswith("Py"))]


def test_every_hook_has_the_variants_that_a_driver_exports() -> None:
    """A base name with a variant left out would hand an old or a new caller past the limit."""
    hooked = _hooked()
    for name in ("cuMemAlloc", "cuMemFree", "cuMemAllocPitch", "cuMemGetInfo", "cuDeviceTotalMem", "cuCtxCreate"):
        assert {name, f"{name}_v2"} <= hooked
    for name in ("cuMemAllocAsync", "cuMemAllocFromPoolAsync", "cuLaunchKernel", "cuLaunchKernelEx", "cuGraphLaunch"):
        assert {name, f"{name}_ptsz"} <= hooked
