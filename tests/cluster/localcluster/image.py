"""The images that the cluster runs, made from Debian's packages, this virtual environment and this repository.

Each is a stack of layers in a per-user cache: Debian's python3, the packages from PyPI, then the thin layer of what
changes from day to day. `manifests/image/Containerfile` is the same recipe for people with a container tool.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from localcluster import binaries, constants, oci, rootfs, site_packages
from localcluster.errors import ClusterError

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).resolve().parents[3]
SITE = f"usr/local/lib/python{sys.version_info.major}.{sys.version_info.minor}/dist-packages"
_OWN_PACKAGES = ("operator/egpu", "operator/egpu_operator", "agent/egpu_agent", "libvgpu/egpu_vgpu")
_PROGRAMS = {"egpu-operator": "egpu_operator", "egpu-agent": "egpu_agent"}
_ENVIRONMENT = ("PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "PYTHONUNBUFFERED=1")
_SCRIPT = """#!/usr/bin/python3
import sys
from {package}.__main__ import main
sys.exit(main())
"""
_PAUSE = """
#include <signal.h>
#include <unistd.h>
static void end(int number) { (void)number; _exit(0); }
int main(void) { signal(SIGTERM, end); signal(SIGINT, end); for (;;) pause(); }
"""


def cache() -> Path:
    """Where images and their layers are kept between runs."""
    folder = binaries.user_cache() / "images"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def product() -> oci.Image:
    """The one image of operator and agent, from the working tree as it is."""
    layers = (rootfs.base_layer(cache()), site_packages.dependency_layer(cache(), SITE), _own_layer())
    return oci.Image(name=constants.PRODUCT_IMAGE, layers=layers, environment=_ENVIRONMENT)


def demo(files: Mapping[str, Path] | None = None) -> oci.Image:
    """A user's image: Debian with python3, and these programs in `/opt/demo`, by their names there."""
    with tempfile.TemporaryDirectory(dir=cache()) as scratch:
        folder = Path(scratch, "demo")
        folder.mkdir()
        for name, source in (files or {}).items():
            shutil.copy(source, folder / name)
        layer = _content_named(oci.pack(Path(scratch, "demo.tar"), {"opt/demo": folder}), "demo")
    return oci.Image(
        name=constants.DEMO_IMAGE, layers=(rootfs.base_layer(cache()), layer), environment=_ENVIRONMENT, command=("sh",)
    )


def pause() -> oci.Image:
    """The image that holds a pod's namespaces: one static program."""
    program = cache() / f"pause-{hashlib.sha256(_PAUSE.encode()).hexdigest()[:16]}"
    if not program.exists():
        scratch = program.with_suffix(".tmp")
        command = ["cc", "-x", "c", "-static", "-O2", "-s", "-o", str(scratch), "-"]
        subprocess.run(command, input=_PAUSE, text=True, check=True)
        scratch.rename(program)
    layer = oci.pack(program.with_suffix(".tar"), {"pause": program})
    return oci.Image(name=constants.PAUSE_IMAGE, layers=(layer,), entrypoint=("/pause",))


def scheduler() -> oci.Image:
    """kube-scheduler alone, for a second scheduler as a Deployment."""
    program = binaries.folder(binaries.CONTROL_PLANE) / "kube-scheduler"
    target = cache() / f"kube-scheduler-{program.parent.name}.tar"
    place = "usr/local/bin/kube-scheduler"
    layer = oci.layer(target) if target.exists() else oci.pack(target, {place: program})
    return oci.Image(
        name=constants.SCHEDULER_IMAGE, layers=(layer,), environment=_ENVIRONMENT, entrypoint=(f"/{place}",)
    )


def archive(*images: oci.Image) -> Path:
    """One archive of these images, kept in the cache; the latest three of each set stay there."""
    key = hashlib.sha256(repr([(image, [item.digest for item in image.layers]) for image in images]).encode())
    names = "+".join(image.name.rpartition("/")[2].partition(":")[0] for image in images)
    target = cache() / f"archive-{names}-{key.hexdigest()[:16]}.tar"
    if not target.exists():
        oci.write(target, *images)
        _keep_latest(f"archive-{names}-*.tar")
    target.touch()
    return target


def _own_layer() -> oci.Layer:
    with tempfile.TemporaryDirectory(dir=cache()) as scratch:
        site, scripts = Path(scratch, "site"), Path(scratch, "bin")
        for package in _OWN_PACKAGES:
            _copy_package(ROOT / package, site)
        site_packages.compile_for_good(site)
        scripts.mkdir()
        for name, package in _PROGRAMS.items():
            (scripts / name).write_text(_SCRIPT.format(package=package))
            (scripts / name).chmod(0o755)
        return _content_named(oci.pack(Path(scratch, "own.tar"), {SITE: site, "usr/local/bin": scripts}), "own")


def _copy_package(source: Path, site: Path) -> None:
    if not (source / "__init__.py").exists():
        raise ClusterError(f"no package in {source}")
    shutil.copytree(source, site / source.name, ignore=shutil.ignore_patterns("__pycache__", "*.pyi", "*.c", "*.o"))


def _content_named(layer: oci.Layer, name: str) -> oci.Layer:
    """The same layer, in the cache under a name of its content."""
    target = cache() / f"{name}-{layer.digest[7:23]}.tar"
    layer.path.rename(target)
    _keep_latest(f"{name}-*.tar")
    return oci.Layer(path=target, digest=layer.digest, size=layer.size)


def _keep_latest(pattern: str, count: int = 3) -> None:
    """Drop older files of a kind. A cluster that comes up meanwhile uses the latest."""
    files = sorted(cache().glob(pattern), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in files[count:]:
        path.unlink(missing_ok=True)
