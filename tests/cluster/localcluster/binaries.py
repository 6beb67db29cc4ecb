"""Where the cluster's programs come from: a folder that the caller names, the machine, or the Go modules beside us.

The modules are built once into a per-user cache, whose folder carries the digest of everything that decides the
outcome. A program appears there by rename, so a build that was interrupted goes on where it stopped.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from localcluster.constants import CONTAINERD_SERIES, KUBERNETES_VERSION
from localcluster.errors import ClusterError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

MODULES = Path(__file__).resolve().parents[1] / "go"

_VERSION = "k8s.io/component-base/version"
_MAJOR, _MINOR, _ = KUBERNETES_VERSION.split(".")
_FLAGS = {
    "kubernetes": f"-s -w -X {_VERSION}.gitVersion=v{KUBERNETES_VERSION} "
    f"-X {_VERSION}.gitMajor={_MAJOR} -X {_VERSION}.gitMinor={_MINOR}",
    "etcd": "-s -w",
    "containerd": "-s -w",
    "coredns": "-s -w",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """How a program is built, and how a program found on the machine is known to be the right one."""

    module: str
    package: str
    version_args: tuple[str, ...] = ()
    version_has: str = ""


def _kubernetes(name: str) -> Source:
    args = ("version", "--client") if name == "kubectl" else ("--version",)
    package = f"k8s.io/kubernetes/cmd/{name}"
    return Source(module="kubernetes", package=package, version_args=args, version_has=f"v{KUBERNETES_VERSION}")


def _containerd(name: str) -> Source:
    package = f"github.com/containerd/containerd/v2/cmd/{name}"
    return Source(module="containerd", package=package, version_args=("-v",), version_has=f"{CONTAINERD_SERIES}.")


def _cni(path: str) -> Source:
    return Source(module="containerd", package=f"github.com/containernetworking/plugins/plugins/{path}")


SOURCES = {
    "etcd": Source(
        module="etcd",
        package="go.etcd.io/etcd/server/v3",
        version_args=("--version",),
        version_has="etcd Version: 3.6.",
    ),
    "kube-apiserver": _kubernetes("kube-apiserver"),
    "kube-controller-manager": _kubernetes("kube-controller-manager"),
    "kubectl": _kubernetes("kubectl"),
    "kube-scheduler": _kubernetes("kube-scheduler"),
    "kubelet": _kubernetes("kubelet"),
    "kube-proxy": _kubernetes("kube-proxy"),
    "containerd": _containerd("containerd"),
    "containerd-shim-runc-v2": _containerd("containerd-shim-runc-v2"),
    "ctr": _containerd("ctr"),
    "bridge": _cni("main/bridge"),
    "host-local": _cni("ipam/host-local"),
    "loopback": _cni("main/loopback"),
    "coredns": Source(module="coredns", package="."),
}
CONTROL_PLANE = ("etcd", "kube-apiserver", "kube-controller-manager", "kubectl", "kube-scheduler")
EVERYTHING = tuple(SOURCES)


def user_cache() -> Path:
    """The per-user cache folder of the project."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "elasticgpu"


def cache_folder() -> Path:
    """Where the programs of exactly these modules and flags lie, or will."""
    digest = hashlib.sha256(repr(sorted(_FLAGS.items())).encode())
    for path in sorted(MODULES.glob("*/*")):
        digest.update(path.relative_to(MODULES).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return user_cache() / "cluster" / digest.hexdigest()[:16]


def folder(names: Sequence[str] = EVERYTHING) -> Path:
    """A folder that holds all these programs; builds what is missing, with a line for each.

    Looked for in this order: `EGPU_CLUSTER_BIN` (trusted as it is), `KUBEBUILDER_ASSETS`, then the per-user cache,
    which takes each program from PATH when that is the right version and from the pinned modules otherwise.

    Raises:
        ClusterError: `EGPU_CLUSTER_BIN` lacks a program, Go is missing, or a build failed.
    """
    if given := os.environ.get("EGPU_CLUSTER_BIN"):
        return _given(Path(given), names)
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    if assets and all(_right_version(Path(assets) / name, SOURCES[name]) for name in names):
        return Path(assets)
    cache = cache_folder()
    if not _missing(cache, names):
        return cache
    cache.mkdir(parents=True, exist_ok=True)
    with _lock(cache):
        _fill(cache, names)
    return cache


def _given(path: Path, names: Sequence[str]) -> Path:
    if missing := _missing(path, names):
        raise ClusterError(f"EGPU_CLUSTER_BIN={path} lacks {', '.join(missing)}: unset it to have them built")
    return path.resolve()


def _missing(path: Path, names: Sequence[str]) -> list[str]:
    return [name for name in names if not os.access(path / name, os.X_OK)]


@contextlib.contextmanager
def _lock(cache: Path) -> Iterator[None]:
    with (cache / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("another process builds the cluster's programs; waiting for it", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _fill(cache: Path, names: Sequence[str]) -> None:
    for number, name in enumerate(names, start=1):
        if not _missing(cache, [name]):
            continue
        if found := _on_path(name):
            print(f"taking {name} from {found} ({number}/{len(names)})", flush=True)
            _put(cache, name, functools.partial(shutil.copy2, found))
        else:
            _build_with_progress(cache, name, f"{number}/{len(names)}")


def _on_path(name: str) -> Path | None:
    found = shutil.which(name)
    return Path(found) if found and _right_version(Path(found), SOURCES[name]) else None


def _right_version(path: Path, source: Source) -> bool:
    if not source.version_has or not os.access(path, os.X_OK):
        return False
    try:
        done = subprocess.run([path, *source.version_args], capture_output=True, text=True, check=False, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0 and source.version_has in done.stdout


def _put(cache: Path, name: str, make: Callable[[Path], object]) -> None:
    scratch = cache / f".{name}.{os.getpid()}"
    try:
        make(scratch)
        scratch.rename(cache / name)
    finally:
        scratch.unlink(missing_ok=True)


def _build_with_progress(cache: Path, name: str, count: str) -> None:
    version = f" {KUBERNETES_VERSION}" if SOURCES[name].module == "kubernetes" else ""
    print(f"building {name}{version} ({count}) … ", end="", flush=True)
    started = time.monotonic()
    _put(cache, name, lambda target: _build(name, target))
    print(f"{time.monotonic() - started:.0f} s", flush=True)


def _build(name: str, target: Path) -> None:
    source = SOURCES[name]
    command = [
        "go",
        "build",
        "-trimpath",
        "-mod=readonly",
        "-ldflags",
        _FLAGS[source.module],
        "-o",
        str(target),
        source.package,
    ]
    environment = {**os.environ, "CGO_ENABLED": "0", "GOWORK": "off", "GOFLAGS": "-buildvcs=false"}
    try:
        done = subprocess.run(
            command, cwd=MODULES / source.module, env=environment, capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        raise ClusterError(
            "no Go compiler on PATH: install Go 1.26 or newer, or name a folder of ready programs in EGPU_CLUSTER_BIN"
        ) from None
    if done.returncode:
        raise ClusterError(f"building {name} failed: {' '.join(command)}\n{done.stderr[-4000:]}")
