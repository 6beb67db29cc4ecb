"""Which processes of this node belong to which pod, by their cgroups.

A pod's cgroup carries its UID: ``.../pod<uid>/<container>`` with the cgroupfs driver,
``...-pod<uid with _ for ->.slice/cri-containerd-<container>.scope`` with systemd's. Everything below it counts, the
sandbox's own process too: while there is a sandbox, a container may still be on its way into it.
"""

import asyncio
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

_POD: Final = re.compile(r"[/-]pod([0-9a-f]{8}([-_])[0-9a-f]{4}\2[0-9a-f]{4}\2[0-9a-f]{4}\2[0-9a-f]{12})(?=[./\n]|$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A process: its pid on the node and its name."""

    pid: int
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Census:
    """Who was there during one look: processes by pod UID, and all pids."""

    pods: Mapping[str, tuple[Process, ...]] = field(default_factory=dict)
    pids: frozenset[int] = frozenset()


def pod_uid(cgroup: str) -> str | None:
    """The pod UID in the content of a ``/proc/<pid>/cgroup``, of either cgroup version."""
    found = _POD.search(cgroup)
    return found.group(1).replace("_", "-") if found else None


def take(proc: Path) -> Census:
    """Looks twice: a process whose parent ends may hide once, by coming after its place has been passed."""
    first, second = _pass(proc), _pass(proc)
    pods = {
        uid: tuple({p.pid: p for p in (*first.pods.get(uid, ()), *second.pods.get(uid, ()))}.values())
        for uid in {*first.pods, *second.pods}
    }
    return Census(pods=pods, pids=first.pids | second.pids)


class Counter:
    """Takes a census when asked; whoever asks while one is under way shares the next."""

    def __init__(self, proc: Path) -> None:
        self._proc = proc
        self._lock = asyncio.Lock()
        self._next: asyncio.Task[Census] | None = None

    async def take(self) -> Census:
        """A census that began after this call."""
        if self._next is None:
            self._next = asyncio.create_task(self._take(), name="census")
        return await asyncio.shield(self._next)

    async def _take(self) -> Census:
        async with self._lock:
            self._next = None
            return await asyncio.to_thread(take, self._proc)


def _pass(proc: Path) -> Census:
    pods: dict[str, list[Process]] = defaultdict(list)
    pids = [int(entry.name) for entry in proc.iterdir() if entry.name.isdigit()]
    for pid in pids:
        uid = pod_uid(_read(proc / str(pid) / "cgroup"))
        if uid is not None:
            pods[uid].append(Process(pid=pid, name=_read(proc / str(pid) / "comm").strip()))
    return Census(pods={uid: tuple(found) for uid, found in pods.items()}, pids=frozenset(pids))


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
