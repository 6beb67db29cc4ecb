"""Compile the two libraries with the system's compiler, or any other."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shlex
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

SOURCE: Final = Path(__file__).resolve().parent.parent / "src"
REPOSITORY: Final = Path(__file__).resolve().parents[3]
DEFAULT_OUT: Final = REPOSITORY / "build" / "gpusim"
DEFAULT_CC: Final = "cc"
FLAGS: Final = (
    "-std=c11",
    "-O2",
    "-fPIC",
    "-shared",
    "-fvisibility=hidden",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-pthread",
    "-Wl,-z,defs",
)
STAMP: Final = "digest"

_ROW: Final = re.compile(r"^(?:CUDA|NVML)_FN\(([^,]+), (\w+), \((.*?)\)(?:, \d+)?\)$", re.MULTILINE)
_VERSIONED: Final = re.compile(r"^CUDA_(?:FN\(\w+, |STUB\()(\w+),.* (\d+)\)$", re.MULTILINE)
_STUB: Final = re.compile(r"^(?:CUDA|NVML)_STUB\((\w+)[,)]", re.MULTILINE)


class BuildError(RuntimeError):
    """The compiler refused; the message is its output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """One row of a `.def` list."""

    name: str
    parameters: str

    @property
    def arguments(self) -> str:
        """The parameters' names, to call another function of the same signature."""
        if self.parameters == "void":
            return ""
        return ", ".join(re.findall(r"(\w+)$", part.strip())[0] for part in self.parameters.split(","))


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """One library: its file name is its soname."""

    soname: str
    sources: tuple[str, ...]
    lists: tuple[str, ...]

    @property
    def link(self) -> str:
        """The name without version, as the linker looks for it."""
        return self.soname.removesuffix(".1")


LIBRARIES: Final = (
    Library(
        soname="libcuda.so.1",
        sources=("client.c", "arena.c", *sorted(path.name for path in SOURCE.glob("cuda_*.c"))),
        lists=("cuda_api.def", "cuda_stubs.def"),
    ),
    Library(
        soname="libnvidia-ml.so.1",
        sources=("client.c", *sorted(path.name for path in SOURCE.glob("nvml*.c"))),
        lists=("nvml_api.def", "nvml_stubs.def"),
    ),
)
NODE_LIBRARY: Final = Library(soname="libgpusim-node.so", sources=("client.c", "node.c"), lists=())
NODE_SYMBOLS: Final = ("gpusim_lock", "gpusim_unlock", "gpusim_wake")


def functions(name: str) -> list[Function]:
    """The rows of a `.def` list that have parameters."""
    return [Function(name=m[2], parameters=m[3]) for m in _ROW.finditer((SOURCE / name).read_text())]


def versions(name: str) -> list[tuple[str, int]]:
    """Symbol and first CUDA version of each row of a `cuda_*.def` list."""
    text = (SOURCE / name).read_text()
    return [(m[1], int(m[2])) for m in _VERSIONED.finditer(text)]


def base_name(symbol: str) -> str:
    """The name that cuGetProcAddress takes."""
    return re.sub(r"(_v\d)?(_pt[ds][sz])?$", "", symbol)


def symbols(library: Library) -> list[str]:
    """Every symbol a library exports."""
    if not library.lists:
        return list(NODE_SYMBOLS)
    text = "\n".join((SOURCE / name).read_text() for name in library.lists)
    return [m[2] for m in _ROW.finditer(text)] + _STUB.findall(text)


def version_script(names: Iterable[str]) -> str:
    """An anonymous version script that exports those names only."""
    return "{\nglobal:\n" + "".join(f"    {name};\n" for name in names) + "local:\n    *;\n};\n"


def per_thread_source(rows: Iterable[Function]) -> str:
    """C for the `_ptds` and `_ptsz` variants: the plain call with the per-thread default stream."""
    text = '#include "cuda_internal.h"\n'
    for row in rows:
        if not row.name.endswith(("_ptds", "_ptsz")):
            continue
        plain = row.name[: -len("_ptds")]
        text += (
            f"\nCUresult {row.name}({row.parameters})\n{{\n    gs_per_thread_default++;\n"
            f"    CUresult rc = {plain}({row.arguments});\n    gs_per_thread_default--;\n    return rc;\n}}\n"
        )
    return text


def digest(cc: str) -> str:
    """What the result depends on."""
    state = hashlib.sha256(cc.encode() + Path(__file__).read_bytes())
    for path in sorted(SOURCE.iterdir()):
        state.update(path.name.encode() + b"\0" + path.read_bytes())
    return state.hexdigest()


def build(*, out: Path = DEFAULT_OUT, cc: str = DEFAULT_CC) -> Path:
    """Build both libraries into a folder unless it already has them; returns the folder.

    Safe to call from many processes at once.

    Raises:
        BuildError: the compiler failed.
    """
    out.mkdir(parents=True, exist_ok=True)
    wanted = digest(cc)
    with (out / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        stamp = out / STAMP
        if stamp.exists() and stamp.read_text() == wanted:
            return out
        stamp.unlink(missing_ok=True)
        for library in (*LIBRARIES, NODE_LIBRARY):
            _compile(library, out=out, cc=cc)
        stamp.write_text(wanted)
    return out


def _compile(library: Library, *, out: Path, cc: str) -> None:
    with tempfile.TemporaryDirectory(dir=out) as scratch:
        folder = Path(scratch)
        (folder / "exports.map").write_text(version_script(symbols(library)))
        sources = [str(SOURCE / name) for name in library.sources]
        if library.soname.startswith("libcuda"):
            (folder / "per_thread.c").write_text(per_thread_source(functions(library.lists[0])))
            sources.append(str(folder / "per_thread.c"))
        target = folder / library.soname
        _run(
            [
                *shlex.split(cc),
                *FLAGS,
                f"-I{SOURCE}",
                f"-Wl,-soname,{library.soname}",
                f"-Wl,--version-script,{folder / 'exports.map'}",
                "-o",
                str(target),
                *sources,
            ]
        )
        target.replace(out / library.soname)
    if library.link == library.soname:
        return
    link = out / library.link
    link.unlink(missing_ok=True)
    link.symlink_to(library.soname)


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "LC_ALL": "C"})
    if done.returncode:
        raise BuildError(f"{shlex.join(command)}\n{done.stderr}")
