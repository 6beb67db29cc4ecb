"""What a cluster and a node see of the filesystem: the machine's root, with some folders of their own on top."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from localcluster import constants, linux
from localcluster.linux import Mount

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from localcluster.spec import ClusterSpec, NodeSpec

_REPOSITORY = Path(__file__).resolve().parents[3]
_SAFE = Mount.NOSUID | Mount.NODEV | Mount.NOEXEC
_DEVICES = {
    "null": (1, 3),
    "zero": (1, 5),
    "full": (1, 7),
    "random": (1, 8),
    "urandom": (1, 9),
    "kmsg": (1, 11),
    "tty": (5, 0),
    "fuse": (10, 229),
}
_LINKS = {"fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2", "ptmx": "pts/ptmx"}
_SYSCTLS = {
    "vm/overcommit_memory": 1,
    "vm/panic_on_oom": 0,
    "kernel/panic": 10,
    "kernel/panic_on_oops": 1,
    "kernel/keys/root_maxkeys": 1000000,
    "kernel/keys/root_maxbytes": 25000000,
}
"""What kubelet sets for the whole machine (setupKernelTunables in pkg/kubelet/cm), unless it is so already."""


def cluster(spec: ClusterSpec) -> None:
    """The control plane's view. Call it in a new mount namespace."""
    linux.mount(None, "/", flags=Mount.RECURSIVE | Mount.PRIVATE)
    with _kept([spec.folder, spec.binaries, *_python(), *_inputs(spec)]):
        linux.mount("proc", "/proc", kind="proc", flags=_SAFE)
        for folder in ("/run", "/var/lib", "/var/log"):
            _tmpfs(folder)
    Path("/run/lock").mkdir()


def sys_of_this_network() -> None:
    """A sysfs that shows this network namespace, without the machine's cgroups."""
    linux.detach("/sys")
    linux.mount("sysfs", "/sys", kind="sysfs", flags=_SAFE)


def node(spec: ClusterSpec, node: NodeSpec) -> None:
    """A node's view, mounts propagating both ways between it and its pods. Call it in a new mount namespace."""
    folder = spec.node_folder(node.name)
    linux.mount(None, "/", flags=Mount.RECURSIVE | Mount.PRIVATE)
    for name in ("lib", "log"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    with (
        _kept([spec.folder, spec.binaries, *_python(), *_inputs(spec)]),
        _opened([folder / "lib", folder / "log"]) as own,
    ):
        linux.mount("proc", "/proc", kind="proc", flags=_SAFE)
        _tmpfs("/run")
        for descriptor, target in zip(own, ("/var/lib", "/var/log"), strict=True):
            linux.mount(f"/proc/self/fd/{descriptor}", target, flags=Mount.BIND)
    for path in ("/run/lock", constants.CDI_DIR, "/var/lib/kubelet"):
        Path(path).mkdir(parents=True, exist_ok=True)
    _devices()
    _mask_sysctls()
    linux.mount(None, "/", flags=Mount.RECURSIVE | Mount.SHARED)


def _python() -> list[Path]:
    return [
        _REPOSITORY,
        Path(sys.prefix),
        Path(sys.base_prefix),
        *(Path(entry) for entry in sys.path if Path(entry).is_dir()),
    ]


def _inputs(spec: ClusterSpec) -> list[Path]:
    files = [*spec.images, *([spec.gpus] if spec.gpus else [])]
    return [path.parent for path in files]


@contextlib.contextmanager
def _kept(paths: Iterable[Path]) -> Iterator[None]:
    """Bring these folders back to their places when the block has covered them; it must mount a /proc of its own."""
    wanted = list(paths)
    with _opened(wanted) as descriptors:
        yield
        for path, descriptor in zip(wanted, descriptors, strict=True):
            if not path.exists() or not os.path.samestat(path.stat(), os.fstat(descriptor)):
                path.mkdir(parents=True, exist_ok=True)
                linux.mount(f"/proc/self/fd/{descriptor}", path, flags=Mount.BIND | Mount.RECURSIVE)


@contextlib.contextmanager
def _opened(paths: Iterable[Path]) -> Iterator[list[int]]:
    descriptors = [os.open(path, os.O_PATH) for path in paths]
    yield descriptors
    for descriptor in descriptors:
        os.close(descriptor)


def _tmpfs(folder: str) -> None:
    linux.mount("tmpfs", folder, kind="tmpfs", flags=Mount.NOSUID | Mount.NODEV, data="mode=755")


def _devices() -> None:
    """A /dev of the node's own: the standard device nodes, and room for those of a simulated driver."""
    linux.mount("tmpfs", "/dev", kind="tmpfs", flags=Mount.NOSUID, data="mode=755")
    mask = os.umask(0)
    for name, number in _DEVICES.items():
        os.mknod(f"/dev/{name}", stat.S_IFCHR | 0o666, os.makedev(*number))
    os.umask(mask)
    for name, target in _LINKS.items():
        Path("/dev", name).symlink_to(target)
    for name, kind, data in (
        ("pts", "devpts", "newinstance,ptmxmode=0666,mode=620"),
        ("shm", "tmpfs", "mode=1777"),
        ("mqueue", "mqueue", None),
    ):
        Path("/dev", name).mkdir()
        linux.mount(kind, f"/dev/{name}", kind=kind, flags=Mount.NOSUID | Mount.NOEXEC, data=data)


def _mask_sysctls() -> None:
    folder = Path("/run/localcluster-sysctl")
    folder.mkdir()
    for name, value in _SYSCTLS.items():
        shown = folder / name.replace("/", ".")
        shown.write_text(f"{value}\n")
        if Path("/proc/sys", name).exists():
            linux.mount(shown, f"/proc/sys/{name}", flags=Mount.BIND)
