"""Build libvgpu.so and the cffi module `egpu_vgpu._native`, each only when its sources have changed.

    python libvgpu/build_native.py [--force]
    python libvgpu/build_native.py --sanitize address,undefined --output DIRECTORY

The library is compiled by the `ziglang` package for glibc 2.17, so that it loads in every container since CentOS 7. The
cffi module runs beside the agent only and is compiled by the system compiler (`$CC`, else `cc`). A sanitizer build is
for tests: the library alone, by the system compiler.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import os
import re
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parent
HEADER = ROOT / "include" / "egpu_abi.h"
PACKAGE = ROOT / "egpu_vgpu"
LIBRARY = PACKAGE / "libvgpu.so"
MODULE = "egpu_vgpu._native"
TARGET = "x86_64-linux-gnu.2.17"
WARNINGS = ("-std=c11", "-Wall", "-Wextra", "-Werror", "-Wstrict-prototypes", "-Wmissing-prototypes", "-Wvla")
LIBRARY_FLAGS = (
    *WARNINGS,
    "-O2",
    "-g0",
    "-fPIC",
    "-fvisibility=hidden",
    "-ftls-model=initial-exec",
    "-fno-strict-aliasing",
    "-mcx16",
    "-D_GNU_SOURCE",
    f"-I{ROOT / 'include'}",
    f"-I{ROOT / 'src'}",
)
LINK_FLAGS = ("-shared", f"-Wl,--version-script={ROOT / 'src' / 'exports.map'}", "-Wl,-soname,libvgpu.so", "-Wl,-z,now")


class BuildError(Exception):
    """A compiler or a tool that the build needs is missing or has failed; the text says which and what to do."""


def sources() -> list[Path]:
    """The library's translation units, in a fixed order."""
    return sorted((ROOT / "src").glob("*.c"))


def build_all(*, force: bool = False) -> list[Path]:
    """Build what is out of date and give the paths of both products."""
    return [build_library(force=force), build_module(force=force)]


def build_library(*, force: bool = False) -> Path:
    """Compile libvgpu.so with zig for glibc 2.17."""
    if importlib.util.find_spec("ziglang") is None:
        raise BuildError("libvgpu.so is compiled by the ziglang package, which is missing: pip install ziglang")
    command = [sys.executable, "-m", "ziglang", "cc", "-target", TARGET, *LIBRARY_FLAGS, "-s", *LINK_FLAGS]
    inputs = [
        *sources(),
        *(ROOT / "src").glob("*.h"),
        *(ROOT / "src").glob("*.def"),
        ROOT / "src" / "exports.map",
        HEADER,
    ]
    return _compile_when_changed([*command, *map(str, sources())], output=LIBRARY, inputs=inputs, force=force)


def build_sanitized(*, sanitizers: str, output: Path) -> Path:
    """Compile the library with the system compiler and the named sanitizers, for tests."""
    output.mkdir(parents=True, exist_ok=True)
    flags = [f"-fsanitize={sanitizers}", "-fno-omit-frame-pointer", "-g", "-DEGPU_SANITIZED=1"]
    command = [*_system_compiler(), *LIBRARY_FLAGS, *flags, *LINK_FLAGS, *map(str, sources())]
    target = output / "libvgpu.so"
    _run([*command, "-o", str(target)])
    return target


def build_module(*, force: bool = False) -> Path:
    """Compile the cffi module from the declarations between the header's cffi marks."""
    output = PACKAGE / f"_native{sysconfig.get_config_var('EXT_SUFFIX')}"
    include = sysconfig.get_paths()["include"]
    generated = ROOT.parent / "build" / "libvgpu" / "_native.c"
    command = [*_system_compiler(), "-std=c11", "-O2", "-fPIC", "-shared", f"-I{ROOT / 'include'}", f"-I{include}"]
    if not force and _is_current(output, _digest(command, [HEADER])):
        return output
    generated.parent.mkdir(parents=True, exist_ok=True)
    _emit_module(generated)
    built = _compile_when_changed([*command, str(generated)], output=output, inputs=[HEADER], force=True, key=command)
    generated.unlink()
    return built


def declarations() -> str:
    """The header's cffi part as plain declarations, array lengths expanded by the compiler's preprocessor."""
    expanded = _run([*_system_compiler(), "-E", "-P", "-C", f"-I{HEADER.parent}", str(HEADER)])
    match = re.search(r"/\* cffi: begin \*/(.*)/\* cffi: end \*/", expanded, re.DOTALL)
    if match is None:
        raise BuildError(f"{HEADER} has lost its 'cffi: begin' and 'cffi: end' marks")
    return match.group(1) + _constants() + "uint64_t egpu_checksum(const void *data, size_t size);\n"


def _constants() -> str:
    names = re.findall(r"^#define (EGPU_[A-Z0-9_]+) (?:0x)?[0-9]", HEADER.read_text(), re.MULTILINE)
    return "".join(f"#define {name} ...\n" for name in names)


def _emit_module(path: Path) -> None:
    from cffi import FFI  # noqa: PLC0415 - only the build needs the compiler half of cffi

    builder = FFI()
    builder.cdef(declarations())
    builder.set_source(MODULE, '#include "egpu_abi.h"')
    builder.emit_c_code(str(path))


def _system_compiler() -> list[str]:
    return shlex.split(os.environ.get("CC", "cc"))


def _compile_when_changed(
    command: list[str], *, output: Path, inputs: list[Path], force: bool, key: list[str] | None = None
) -> Path:
    digest = _digest(key or command, inputs)
    if not force and _is_current(output, digest):
        return output
    fresh = output.with_name(f".{output.name}.{os.getpid()}")
    _run([*command, "-o", str(fresh)])
    fresh.replace(output)
    _stamp(output).write_text(digest)
    return output


def _digest(command: list[str], inputs: list[Path]) -> str:
    sum_ = hashlib.sha256("\0".join(command).encode())
    for path in sorted(inputs):
        sum_.update(path.name.encode() + b"\0" + path.read_bytes())
    return sum_.hexdigest()


def _stamp(output: Path) -> Path:
    return ROOT.parent / "build" / "libvgpu" / f"{output.name}.digest"


def _is_current(output: Path, digest: str) -> bool:
    stamp = _stamp(output)
    stamp.parent.mkdir(parents=True, exist_ok=True)
    return output.exists() and stamp.exists() and stamp.read_text() == digest


def _run(command: list[str]) -> str:
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout
    except FileNotFoundError as error:
        raise BuildError(f"{command[0]} is missing: install a C compiler or name one in $CC") from error
    except subprocess.CalledProcessError as error:
        raise BuildError(f"{shlex.join(command)} failed:\n{error.stderr}") from error


def main() -> int:
    """Command line: build everything, or one sanitizer build."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--force", action="store_true", help="compile even if nothing has changed")
    parser.add_argument("--sanitize", metavar="LIST", help="comma-separated sanitizers, for example address,undefined")
    parser.add_argument("--output", type=Path, default=ROOT.parent / "build" / "libvgpu" / "sanitized")
    options = parser.parse_args()
    try:
        built = (
            [build_sanitized(sanitizers=options.sanitize, output=options.output)]
            if options.sanitize
            else build_all(force=options.force)
        )
    except BuildError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write("".join(f"{path}\n" for path in built))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
