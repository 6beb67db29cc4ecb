"""What a cluster needs before it comes up: programs for it, the product's image, the demo's image."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

from egpu_testing.stack import ROOT
from localcluster import binaries, image

BUILD = ROOT / "build"
DRIVER = BUILD / "gpusim"
PROGRAMS = {
    "slice_report": (ROOT / "examples/01-two-pods-one-card/slice_report.c", ["-lcuda"]),
    "probe": (ROOT / "tests/support/programs/probe.c", ["-ldl"]),
}


def programs() -> dict[str, Path]:
    """The CUDA programs of the demo's image, compiled against the simulated driver as against any other."""
    folder = BUILD / "demo"
    folder.mkdir(parents=True, exist_ok=True)
    return {name: _compile(source, folder / name, libraries) for name, (source, libraries) in PROGRAMS.items()}


def _compile(source: Path, target: Path, libraries: list[str]) -> Path:
    if not target.exists() or target.stat().st_mtime < source.stat().st_mtime:
        compiler = os.environ.get("CC", "cc")
        flags = ["-O2", "-Wall", "-Wextra", "-Werror"]
        # Distributions name the driver's link library libcuda.so; ld takes it from the folder named here.
        subprocess.run([compiler, *flags, str(source), "-o", str(target), f"-L{DRIVER}", *libraries], check=True)
    return target


def images(*, tell: Callable[[str], None] = lambda _: None) -> list[Path]:
    """The archive of every image that the cluster runs, built as far as it is out of date."""
    tell("the programs of a cluster: Kubernetes, etcd, containerd, CoreDNS")
    binaries.folder(binaries.EVERYTHING)
    tell("the images: operator and agent, the demo's programs, kube-scheduler")
    return [image.archive(image.product(), image.demo(programs()), image.scheduler())]
