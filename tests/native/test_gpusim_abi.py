"""cuGetProcAddress, and layouts against the two public bindings."""

import ctypes
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pynvml
import pytest
from cuda.bindings import driver

from gpusim import build
from gpusim.testing import GpusimNode, running

pytestmark = pytest.mark.native

FOUND, NO_SYMBOL, TOO_OLD = 0, 1, 2
PROC = """
import ctypes, json, sys
cuda = ctypes.CDLL("libcuda.so.1")
initialise, questions = json.loads(sys.argv[1])
if initialise:
    assert cuda.cuInit(0) == 0
names = {ctypes.cast(getattr(cuda, name), ctypes.c_void_p).value: name for name in json.loads(sys.argv[2])}
answers = []
for symbol, version, flags in questions:
    pointer, status = ctypes.c_void_p(), ctypes.c_int(-1)
    rc = cuda.cuGetProcAddress_v2(
        symbol.encode(), ctypes.byref(pointer), version, ctypes.c_uint64(flags), ctypes.byref(status)
    )
    answers.append([rc, status.value, names.get(pointer.value)])
print(json.dumps(answers))
"""


@pytest.fixture(scope="module")
def node() -> Iterator[GpusimNode]:
    with running("one-t4") as running_node:
        yield running_node


def ask(node: GpusimNode, questions: list[tuple[str, int, int]], *, initialise: bool) -> list[list[object]]:
    names = build.symbols(build.LIBRARIES[0])
    return json.loads(node.run(PROC, json.dumps([initialise, questions]), json.dumps(names)))


CASES = {
    ("cuMemAlloc", 2000, 0): [0, FOUND, "cuMemAlloc"],
    ("cuMemAlloc", 3020, 0): [0, FOUND, "cuMemAlloc_v2"],
    ("cuMemAlloc", 13000, 1): [0, FOUND, "cuMemAlloc_v2"],
    ("cuCtxCreate", 12000, 0): [0, FOUND, "cuCtxCreate_v3"],
    ("cuCtxCreate", 13000, 0): [0, FOUND, "cuCtxCreate_v4"],
    ("cuMemcpyHtoD", 13000, 0): [0, FOUND, "cuMemcpyHtoD_v2"],
    ("cuMemcpyHtoD", 13000, 2): [0, FOUND, "cuMemcpyHtoD_v2_ptds"],
    ("cuLaunchKernel", 13000, 2): [0, FOUND, "cuLaunchKernel_ptsz"],
    ("cuLaunchKernel", 6000, 2): [0, FOUND, "cuLaunchKernel"],
    ("cuLaunchKernel", 13000, 1): [0, FOUND, "cuLaunchKernel"],
    ("cuGetProcAddress", 11030, 0): [0, FOUND, "cuGetProcAddress"],
    ("cuGetProcAddress", 12000, 0): [0, FOUND, "cuGetProcAddress_v2"],
    ("cuMemAllocAsync", 11010, 0): [500, TOO_OLD, None],
    ("cuNoSuchThing", 13000, 0): [500, NO_SYMBOL, None],
    ("cuMemAlloc_v2", 13000, 0): [500, NO_SYMBOL, None],
    ("cuMem", 13000, 0): [500, NO_SYMBOL, None],
    ("cuInit", 13000, 7): [1, -1, None],
}


@pytest.mark.parametrize("initialise", [True, False], ids=["after cuInit", "before cuInit"])
def test_get_proc_address_picks_the_variant(node: GpusimNode, *, initialise: bool) -> None:
    assert dict(zip(CASES, ask(node, list(CASES), initialise=initialise), strict=True)) == CASES


def test_a_driver_has_no_function_newer_than_itself() -> None:
    with running({"driver": {"cuda": 11040, "version": "470.57.02"}, "cards": [{"model": "NVIDIA-T4"}]}) as old:
        answers = ask(old, [("cuLaunchKernelEx", 13000, 0), ("cuCtxCreate", 13000, 0)], initialise=True)
    assert answers == [[500, TOO_OLD, None], [0, FOUND, "cuCtxCreate_v3"]]


def test_every_listed_function_is_found_by_its_own_version(node: GpusimNode) -> None:
    rows = [row for name in build.LIBRARIES[0].lists for row in build.versions(name)]
    questions = [
        (build.base_name(symbol), version, 2 * symbol.endswith(("_ptds", "_ptsz"))) for symbol, version in rows
    ]
    answers = ask(node, questions, initialise=True)
    assert [answer[:2] for answer in answers] == [[0, FOUND]] * len(rows)
    assert [build.base_name(str(answer[2])) for answer in answers] == [question[0] for question in questions]


CUDA_STRUCTS = (
    "CUuuid",
    "CUipcMemHandle",
    "CUdevprop",
    "CUexecAffinityParam",
    "CUctxCreateParams",
    "CUmemLocation",
    "CUmemAccessDesc",
    "CUmemAllocationProp",
    "CUmemPoolProps",
    "CUDA_ARRAY_DESCRIPTOR",
    "CUDA_ARRAY3D_DESCRIPTOR",
    "CUDA_MEMCPY2D",
    "CUDA_MEMCPY3D",
    "CUlaunchConfig",
    "CUlaunchAttribute",
    "CUDA_LAUNCH_PARAMS",
    "CUDA_KERNEL_NODE_PARAMS",
    "CUDA_MEMSET_NODE_PARAMS",
    "CUDA_GRAPH_INSTANTIATE_PARAMS",
    "CUgraphExecUpdateResultInfo",
)
RENAMED = {f"reserved{i}" for i in range(4)}
NVML_STRUCTS = {
    "nvmlMemory_t": pynvml.c_nvmlMemory_t,
    "nvmlMemory_v2_t": pynvml.c_nvmlMemory_v2_t,
    "nvmlBAR1Memory_t": pynvml.c_nvmlBAR1Memory_t,
    "nvmlPciInfo_t": pynvml.nvmlPciInfo_t,
    "nvmlPciInfo_v2_t": pynvml.nvmlPciInfo_v2_t,
    "nvmlProcessInfo_t": pynvml.c_nvmlProcessInfo_t,
    "nvmlProcessDetail_t": pynvml.c_nvmlProcessDetail_v1_t,
    "nvmlProcessDetailList_t": pynvml.c_nvmlProcessDetailList_v1_t,
    "nvmlUtilization_t": pynvml.c_nvmlUtilization_t,
    "nvmlProcessUtilizationSample_t": pynvml.c_nvmlProcessUtilizationSample_t,
    "nvmlProcessUtilizationInfo_t": pynvml.c_nvmlProcessUtilizationInfo_v1_t,
    "nvmlProcessesUtilizationInfo_t": pynvml.c_nvmlProcessesUtilizationInfo_v1_t,
    "nvmlDeviceAttributes_t": pynvml.c_nvmlDeviceAttributes,
    "nvmlEventData_t": pynvml.c_nvmlEventData_t,
    "nvmlFieldValue_t": pynvml.c_nvmlFieldValue_t,
}


def compiled(folder: Path, lines: list[str]) -> list[list[int]]:
    """What a C program with our headers prints: one list of numbers a line."""
    body = "\n".join(lines)
    source = folder / "layout.c"
    source.write_text(
        '#include <stddef.h>\n#include <stdio.h>\n#include "cuda_types.h"\n#include "nvml_types.h"\n'
        f"int main(void)\n{{\n{body}\nreturn 0;\n}}\n"
    )
    subprocess.run(["cc", f"-I{build.SOURCE}", "-o", str(folder / "layout"), str(source)], check=True)
    out = subprocess.run([str(folder / "layout")], check=True, capture_output=True, text=True).stdout
    return [[int(word) for word in line.split()] for line in out.splitlines()]


def test_nvml_structures_have_the_public_layout(tmp_path: Path) -> None:
    lines, public = [], {}
    for name, struct in NVML_STRUCTS.items():
        fields = [field[0] for field in struct._fields_ if field[0] not in RENAMED]
        offsets = [f"offsetof({name}, {field})" for field in fields]
        lines.append(
            f'printf("{" ".join(["%zu"] * (1 + len(offsets)))}\\n", {", ".join([f"sizeof({name})", *offsets])});'
        )
        public[name] = [ctypes.sizeof(struct), *(getattr(struct, field).offset for field in fields)]
    assert dict(zip(NVML_STRUCTS, compiled(tmp_path, lines), strict=True)) == public


def test_cuda_structures_have_the_public_size(tmp_path: Path) -> None:
    sizes = compiled(tmp_path, [f'printf("%zu\\n", sizeof({name}));' for name in CUDA_STRUCTS])
    public = {name: driver.sizeof(getattr(driver, name)) for name in CUDA_STRUCTS}
    assert {name: size[0] for name, size in zip(CUDA_STRUCTS, sizes, strict=True)} == public
