"""Files written so that a reader never sees half of one."""

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

TEMPORARY = ".tmp"


def write(path: Path, data: bytes, *, mode: int = 0o644, sync: bool = False) -> None:
    """Puts a file in place by rename; ``sync`` makes it outlive a power cut before this returns."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}{TEMPORARY}")
    try:
        with temporary.open("xb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(data)
            file.flush()
            if sync:
                os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    if sync:
        _sync_folder(path.parent)


def remove_leftovers(folder: Path, *, prefix: str) -> None:
    """Removes what a writer left that died between writing and renaming."""
    with contextlib.suppress(FileNotFoundError):
        for path in folder.glob(f".{prefix}*{TEMPORARY}"):
            path.unlink(missing_ok=True)


def identity(path: Path) -> tuple[int, int, int] | None:
    """What tells a file from its successor of the same name; None where there is none.

    An inode number alone is used again at once on some file systems.
    """
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_ctime_ns


def read_all(folders: tuple[Path, ...], *, suffixes: tuple[str, ...]) -> Iterator[tuple[Path, bytes]]:
    """The files of some folders, in order of their names; what cannot be read is passed over."""
    for folder in folders:
        with contextlib.suppress(OSError):
            for path in sorted(folder.iterdir()):
                if path.suffix in suffixes and not path.name.startswith("."):
                    with contextlib.suppress(OSError):
                        yield path, path.read_bytes()


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
