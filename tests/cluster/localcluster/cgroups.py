"""The cluster's control groups, on cgroup v1 (also the hybrid layout) and v2.

A cluster has one group of its own in each hierarchy and, within a cgroup namespace, sees it as the root; each node
again has one within that. On v2 a group with controllers may hold no processes, so process 1 moves into a leaf.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path

from localcluster import linux
from localcluster.errors import ClusterError

ROOT = Path("/sys/fs/cgroup")
_LEAF = "system"
_V1 = frozenset(
    {"cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "blkio", "pids", "hugetlb", "perf_event"}
    | {"net_cls", "net_prio", "rdma", "misc", "name=systemd"}
)
_V2 = frozenset({"cpu", "cpuset", "memory", "pids", "io", "hugetlb"})
_CPUSET = ("cpuset.cpus", "cpuset.mems")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hierarchy:
    """A mounted cgroup hierarchy; one of v2 has no controllers here."""

    mountpoint: Path
    controllers: tuple[str, ...] = ()


def parse(mountinfo: str) -> tuple[Hierarchy, ...]:
    """The hierarchies named in the text of /proc/self/mountinfo: those of v1 if there are any, else the one of v2."""
    v1: dict[Path, Hierarchy] = {}
    v2: dict[Path, Hierarchy] = {}
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        mountpoint = Path(left.split()[4])
        kind, _, options = right.split()[:3]
        if kind == "cgroup2":
            v2[mountpoint] = Hierarchy(mountpoint=mountpoint)
        if kind == "cgroup" and (controllers := tuple(name for name in options.split(",") if name in _V1)):
            v1[mountpoint] = Hierarchy(mountpoint=mountpoint, controllers=controllers)
    return tuple(v1.values()) or tuple(v2.values())[:1]


def observe() -> tuple[Hierarchy, ...]:
    """The hierarchies of this mount namespace."""
    found = parse(Path("/proc/self/mountinfo").read_text())
    if not found:
        raise ClusterError("no cgroup hierarchy is mounted: mount cgroup2 on /sys/fs/cgroup")
    return found


def create(hierarchies: tuple[Hierarchy, ...], name: str) -> None:
    """Make the group in every hierarchy."""
    for hierarchy in hierarchies:
        group = hierarchy.mountpoint / name
        if not hierarchy.controllers:
            _delegate(hierarchy.mountpoint)
        group.mkdir(exist_ok=True)
        if "cpuset" in hierarchy.controllers:
            # Without these a group of v1 takes no process.
            for file in _CPUSET:
                (group / file).write_text((hierarchy.mountpoint / file).read_text())


def _delegate(group: Path) -> None:
    """Let the groups below have the controllers that kubelet and runc use, as far as this group has them."""
    offered = set((group / "cgroup.controllers").read_text().split())
    enabled = set((group / "cgroup.subtree_control").read_text().split())
    missing = sorted(_V2 & offered - enabled)
    try:
        for name in missing:
            (group / "cgroup.subtree_control").write_text(f"+{name}")
    except OSError as error:
        raise ClusterError(
            f"cannot hand {', '.join(missing)} down from {group}: {error}. The cluster wants cgroup controllers of its "
            "own: start it from the root group, or from one whose processes are in groups below it"
        ) from None


def join(hierarchies: tuple[Hierarchy, ...], name: str) -> None:
    """Move the calling process into the group."""
    for hierarchy in hierarchies:
        (hierarchy.mountpoint / name / "cgroup.procs").write_text("0")


def mount_private(hierarchies: tuple[Hierarchy, ...]) -> tuple[Hierarchy, ...]:
    """Mount the hierarchies afresh, as a new cgroup namespace sees them; the caller's group is then their root."""
    if not any(hierarchy.controllers for hierarchy in hierarchies):
        linux.mount("cgroup2", ROOT, kind="cgroup2")
        (ROOT / _LEAF).mkdir(exist_ok=True)
        (ROOT / _LEAF / "cgroup.procs").write_text("0")
        _delegate(ROOT)
        return (Hierarchy(mountpoint=ROOT),)
    linux.mount("tmpfs", ROOT, kind="tmpfs", data="mode=755")
    return tuple(_mount_v1(hierarchy) for hierarchy in hierarchies)


def _mount_v1(hierarchy: Hierarchy) -> Hierarchy:
    joined = ",".join(hierarchy.controllers)
    mountpoint = ROOT / joined.replace("name=", "")
    mountpoint.mkdir()
    linux.mount("cgroup", mountpoint, kind="cgroup", data=joined)
    if len(hierarchy.controllers) > 1:
        for name in hierarchy.controllers:
            (ROOT / name).symlink_to(mountpoint.name)
    return Hierarchy(mountpoint=mountpoint, controllers=hierarchy.controllers)


def remove(hierarchies: tuple[Hierarchy, ...], name: str, *, timeout: float = 10.0) -> list[Path]:
    """Remove the group and those below it; its processes may be about to end still.

    Returns:
        What could not be removed within so many seconds.
    """
    deadline = time.monotonic() + timeout
    groups = [hierarchy.mountpoint / name for hierarchy in hierarchies]
    while left := [group for group in groups if not _remove_tree(group)]:
        if time.monotonic() > deadline:
            break
        time.sleep(0.02)
    return left


def _remove_tree(top: Path) -> bool:
    for folder, _, _ in os.walk(top, topdown=False):
        with contextlib.suppress(OSError):
            Path(folder).rmdir()
    return not top.is_dir()
