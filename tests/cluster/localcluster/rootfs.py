"""The base layer of our images: Debian's python3 and what it needs, unpacked by mmdebstrap without running anything."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from localcluster import oci
from localcluster.errors import ClusterError

if TYPE_CHECKING:
    from collections.abc import Iterator

SUITES = {(3, 11): "bookworm", (3, 13): "trixie"}
"""The Debian release whose python3 is that version: the site packages copied into the images are this interpreter's."""
PACKAGES = ("busybox", "libc-bin", "libpython3-stdlib", "libstdc++6", "openssl", "python3")
_APPLETS = tuple(
    "awk basename cat chmod cp cut date df dirname du echo env false find free grep head hostname id kill less ln ls "  # noqa: SIM905
    "mkdir mount mv nc nslookup pidof printf ps pwd readlink rm rmdir sed seq sh sleep sort stat tail tar tee test "
    "timeout top touch tr true umount uname uniq vi watch wc wget which whoami xargs".split()
)
_UNWANTED = (
    "dev/",
    "etc/apt/sources.list",
    "usr/share/doc/",
    "usr/share/info/",
    "usr/share/lintian/",
    "usr/share/locale/",
    "usr/share/man/",
    "var/cache/",
    "var/lib/apt/",
    "var/lib/dpkg/",
    "var/log/",
)
_FILES = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/bin/false\n",
    "etc/group": "root:x:0:\nnogroup:x:65534:\n",
}
_RECIPE = 1
"""Raise it when the same packages are to give another layer."""


def base_layer(cache: Path) -> oci.Layer:
    """The layer, made at the first call; `EGPU_BASE_TAR` names another root filesystem to use."""
    if given := os.environ.get("EGPU_BASE_TAR"):
        return oci.layer(Path(given))
    suite = _suite()
    key = hashlib.sha256(repr((_RECIPE, suite, PACKAGES, _APPLETS, _UNWANTED, _FILES)).encode()).hexdigest()[:16]
    target = cache / f"base-{suite}-{key}.tar"
    if not target.exists():
        print(f"making the base layer from Debian {suite}: {', '.join(PACKAGES)}", flush=True)
        _make(suite, target)
    return oci.layer(target)


def _suite() -> str:
    version = sys.version_info[:2]
    if version not in SUITES:
        known = ", ".join(f"{major}.{minor} ({name})" for (major, minor), name in SUITES.items())
        raise ClusterError(
            f"no Debian release has Python {version[0]}.{version[1]} as its python3: make the environment with {known}"
        )
    return SUITES[version]


def _make(suite: str, target: Path) -> None:
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        unpacked = Path(scratch) / "base.tar"
        command = [
            "mmdebstrap",
            "--quiet",
            "--variant=extract",
            f"--include={','.join(PACKAGES)}",
            suite,
            str(unpacked),
        ]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True)
        except FileNotFoundError:
            raise ClusterError("mmdebstrap is missing: run `python -m localcluster apt`") from None
        except subprocess.CalledProcessError as error:
            raise ClusterError(f"{' '.join(command)} failed: {error.stderr[-2000:]}") from None
        cleaned = Path(scratch) / "cleaned.tar"
        _clean(unpacked, cleaned)
        cleaned.rename(target)


def _clean(source: Path, target: Path) -> None:
    """Drop what no container needs, and the times; add what maintainer scripts would have made."""
    with tarfile.open(source) as old, tarfile.open(target, "w", format=tarfile.GNU_FORMAT) as new:
        present = set()
        for entry in old:
            name = entry.name.removeprefix("./").rstrip("/")
            if any(name.startswith(part) for part in _UNWANTED):
                continue
            present.add(name)
            entry.mtime = 0
            new.addfile(entry, old.extractfile(entry) if entry.isreg() else None)
        for entry, content in _additions(present):
            new.addfile(entry, io.BytesIO(content))


def _additions(present: set[str]) -> Iterator[tuple[tarfile.TarInfo, bytes]]:
    for name, text in _FILES.items():
        if name not in present:
            entry = tarfile.TarInfo(f"./{name}")
            entry.size = len(text)
            yield entry, text.encode()
    merged = "usr/bin/busybox" in present
    for name in ("bin", "sbin", "lib", "lib64") if merged else ():
        if name not in present:
            yield _link(name, f"usr/{name}"), b""
    for applet in _APPLETS:
        if not {f"bin/{applet}", f"usr/bin/{applet}"} & present:
            yield _link(f"{'usr/bin' if merged else 'bin'}/{applet}", "busybox"), b""


def _link(name: str, target: str) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(f"./{name}")
    entry.type, entry.linkname = tarfile.SYMTYPE, target
    return entry
