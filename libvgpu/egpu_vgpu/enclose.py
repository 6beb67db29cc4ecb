"""Run a program with a slice, as a container would have it: a private mount namespace, then exec in place.

The program finds `/etc/elasticgpu/limits`, `/etc/elasticgpu/usage` and `/etc/ld.so.preload`; nothing outside the
namespace changes. Without root a user namespace is made first, where the system allows it.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import sys
import tempfile
from pathlib import Path

from egpu_vgpu import library_path

_CLONE_NEWNS = 0x00020000
_CLONE_NEWUSER = 0x10000000
_MS_RDONLY, _MS_REMOUNT, _MS_BIND, _MS_REC, _MS_PRIVATE = 1, 32, 4096, 16384, 1 << 18
_MNT_DETACH = 2

_libc = ctypes.CDLL(None, use_errno=True)


class EncloseError(Exception):
    """The namespace could not be made; the text is one line that says what is missing."""


def enclose(*, limits: Path | None, usage: Path | None, library: Path) -> None:
    """Put this process into a mount namespace of its own that holds the slice's files.

    Args:
        limits: limits page; None leaves it missing, and the library then refuses every allocation.
        usage: usage region; None leaves it missing.
        library: the library to preload.

    Raises:
        EncloseError: the system does not allow it.
    """
    _unshare()
    _mount("none", "/", None, _MS_REC | _MS_PRIVATE)
    _cover_etc(preload=library.resolve())
    target = Path("/etc/elasticgpu")
    target.mkdir(exist_ok=True)
    if limits is not None:
        _bind(limits, target / "limits", writable=False)
    if usage is not None:
        _bind(usage, target / "usage", writable=True)


def main(arguments: list[str] | None = None) -> int:
    """Command line: enclose and exec."""
    parser = argparse.ArgumentParser(prog="python -m egpu_vgpu.enclose", description=__doc__)
    parser.add_argument("--limits", type=Path, help="limits page; left out: the program finds none")
    parser.add_argument("--usage", type=Path, help="usage region; left out: the program finds none")
    parser.add_argument("--library", type=Path, help="library to preload (default: the built one)")
    parser.add_argument("program", nargs="+", help="program and its arguments, after --")
    options = parser.parse_args(arguments)
    try:
        enclose(limits=options.limits, usage=options.usage, library=options.library or library_path())
        os.execvp(options.program[0], options.program)  # noqa: S606 - to exec is what this is for
    except (EncloseError, OSError) as error:
        sys.stderr.write(f"{options.program[0]}: {error}\n")
    return 127


def _unshare() -> None:
    if os.geteuid() == 0:
        _check(_libc.unshare(_CLONE_NEWNS), "make a mount namespace")
        return
    user, group = os.geteuid(), os.getegid()
    _check(_libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNS), "make a user namespace (run as root, or allow them)")
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1")


def _cover_etc(*, preload: Path) -> None:
    """Lay a private, writable /etc over the system's, which stays readable through it."""
    folder = Path(tempfile.mkdtemp(prefix="egpu-"))
    _mount("tmpfs", folder, "tmpfs", 0, "mode=755")
    upper, work = folder / "upper", folder / "work"
    upper.mkdir(mode=0o755)
    work.mkdir()
    former = Path("/etc/ld.so.preload")
    lines = former.read_text() if former.exists() else ""
    (upper / "ld.so.preload").write_text(f"{lines}{preload}\n")
    _mount("overlay", "/etc", "overlay", 0, f"lowerdir=/etc,upperdir={upper},workdir={work}")
    _check(_libc.umount2(os.fsencode(folder), _MNT_DETACH), f"detach {folder}")
    folder.rmdir()


def _bind(source: Path, target: Path, *, writable: bool) -> None:
    target.touch()
    _mount(source, target, None, _MS_BIND)
    if not writable:
        _mount("none", target, None, _MS_BIND | _MS_REMOUNT | _MS_RDONLY)


def _mount(source: Path | str, target: Path | str, kind: str | None, flags: int, data: str | None = None) -> None:
    encoded = [os.fsencode(source), os.fsencode(target), kind.encode() if kind else None]
    result = _libc.mount(*encoded, ctypes.c_ulong(flags), data.encode() if data else None)
    _check(result, f"mount {kind or source} on {target}")


def _check(result: int, what: str) -> None:
    if result != 0:
        raise EncloseError(f"cannot {what}: {os.strerror(ctypes.get_errno())}")


if __name__ == "__main__":
    raise SystemExit(main())
