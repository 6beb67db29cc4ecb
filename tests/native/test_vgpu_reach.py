"""Every way to the driver leads through the library, and names that are not ours mean what they mean without it."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from vgpu_testing import CONTEXT, GRANULE, compiled, simulated, slice_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gpusim.testing import GpusimNode
    from vgpu_testing import Slice

pytestmark = pytest.mark.native

LIMIT = CONTEXT + 4 * GRANULE
LOADED = ["dlopen", "default", "next", "indirect", "proc", "proc-v1", "proc-early", "constructor"]


@pytest.fixture(scope="module")
def node() -> Iterator[GpusimNode]:
    with simulated() as made:
        yield made


@pytest.fixture
def piece(node: GpusimNode) -> Iterator[Slice]:
    with slice_of(LIMIT, node=node) as made:
        yield made


@pytest.fixture(scope="module")
def loaded() -> Path:
    return compiled("reach", "-ldl")


@pytest.fixture(scope="module")
def linked(node: GpusimNode) -> Path:
    return compiled("reach", "-DLINKED", f"-L{node.lib_dir}", "-lcuda", "-ldl", suffix="-linked")


@pytest.mark.parametrize("binding", ["lazy", "now"])
@pytest.mark.parametrize("way", [*LOADED, "link"])
def test_every_way_is_held_to_the_limit(piece: Slice, loaded: Path, linked: Path, way: str, binding: str) -> None:
    program = linked if way == "link" else loaded
    env = {"LD_BIND_NOW": "1"} if binding == "now" else {}
    assert piece.run(str(program), way, str(4 * GRANULE), env=env) == "0\n"
    assert piece.run(str(program), way, str(4 * GRANULE + 1), env=env) == "2\n"


@pytest.mark.parametrize("way", ["dlopen", "proc", "link"])
def test_without_the_library_the_same_programs_take_what_they_like(
    node: GpusimNode, loaded: Path, linked: Path, way: str
) -> None:
    process = node.start([str(linked if way == "link" else loaded), way, str(100 * GRANULE)])
    assert process.communicate(timeout=10)[0] == "0\n"


def test_other_names_mean_what_they_mean_to_their_caller(piece: Slice, tmp_path: Path) -> None:
    libraries = []
    for name in ("first", "second"):
        built = compiled("callers", f"-DLIBRARY={name}", "-shared", "-fPIC", "-ldl", suffix=f"-{name}.so")
        libraries.append(str(built))
    program = compiled("callers", *libraries, f"-Wl,-rpath,{tmp_path}", "-ldl", suffix="-program")
    alone = piece.node.start([str(program)]).communicate(timeout=10)[0]
    assert alone == "program first second nobody 1 1 1\n"
    assert piece.run(str(program)) == alone


def test_a_versioned_lookup_of_a_versioned_driver_is_answered(piece: Slice, tmp_path: Path) -> None:
    """libcuda has no versions today; where it has, dlvsym finds the hook as dlsym does."""
    (tmp_path / "map").write_text("V1 { global: cu*; };\n")
    (tmp_path / "cuda.c").write_text("int cuMemAlloc_v2(void *p, unsigned long n) { return p != 0 && n; }\n")
    library = tmp_path / "libcuda.so.1"
    command = ["cc", "-shared", "-fPIC", f"-Wl,--version-script={tmp_path}/map", "-Wl,-soname,libcuda.so.1"]
    subprocess.run([*command, str(tmp_path / "cuda.c"), "-o", str(library)], check=True)
    code = (
        "import ctypes\nlibrary = ctypes.CDLL('libcuda.so.1')\n"
        "libc = ctypes.CDLL(None)\nlibc.dlvsym.restype = libc.dlsym.restype = ctypes.c_void_p\n"
        "handle = ctypes.c_void_p(library._handle)\n"
        "found = libc.dlvsym(handle, b'cuMemAlloc_v2', b'V1')\n"
        "print(found == libc.dlsym(handle, b'cuMemAlloc_v2'), libc.dlvsym(handle, b'cuMemAlloc_v2', b'V2'))"
    )
    assert piece.python(code, env={"LD_LIBRARY_PATH": str(tmp_path)}) == "True None\n"


CUDA_BINDINGS = """
from cuda.bindings import driver as cuda
def do(answer):
    assert answer[0] == cuda.CUresult.CUDA_SUCCESS, answer
    return answer[1] if len(answer) == 2 else answer[1:]
do(cuda.cuInit(0))
device = do(cuda.cuDeviceGet(0))
context = do(cuda.cuDevicePrimaryCtxRetain(device))
do(cuda.cuCtxSetCurrent(context))
free, total = do(cuda.cuMemGetInfo())
held = []
while True:
    error, address = cuda.cuMemAlloc(2 << 20)
    if error != cuda.CUresult.CUDA_SUCCESS:
        break
    held.append(address)
stream = do(cuda.cuStreamCreate(0))
for address in held:
    do(cuda.cuMemFree(address))
one = do(cuda.cuMemAllocAsync(2 << 20, stream))
do(cuda.cuMemFreeAsync(one, stream))
do(cuda.cuStreamSynchronize(stream))
print(error.name, len(held), total)
do(cuda.cuDevicePrimaryCtxRelease(device))
"""


def test_cuda_bindings_run_unchanged(node: GpusimNode) -> None:
    limit = CONTEXT + 32 * GRANULE
    with slice_of(limit, node=node) as piece:
        assert piece.python(CUDA_BINDINGS) == f"CUDA_ERROR_OUT_OF_MEMORY 32 {limit}\n"


NVML = """
import pynvml
pynvml.nvmlInit()
for again in range(2):
    card = pynvml.nvmlDeviceGetHandleByIndex(0)
    print(pynvml.nvmlDeviceGetCount(), pynvml.nvmlDeviceGetName(card), pynvml.nvmlDeviceGetMemoryInfo(card).total,
          pynvml.nvmlDeviceGetComputeRunningProcesses(card), pynvml.nvmlDeviceGetUtilizationRates(card).gpu)
    pynvml.nvmlShutdown()
    pynvml.nvmlInit()
"""


def test_nvidia_ml_py_runs_unchanged(piece: Slice) -> None:
    lines = piece.python(NVML).splitlines()
    assert lines[0] == lines[1]
    assert f" {LIMIT} [] " in lines[0]
