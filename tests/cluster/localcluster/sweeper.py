"""What removes the traces of a cluster that has ended, however it ended."""

from __future__ import annotations

import contextlib
import os
import select
import signal
from pathlib import Path
from typing import TYPE_CHECKING

from localcluster import cgroups

if TYPE_CHECKING:
    from localcluster.cgroups import Hierarchy


def start(folder: Path, hierarchies: tuple[Hierarchy, ...], group: str, lifeline: int | None) -> None:
    """Fork a process that sweeps once the caller has ended.

    It also ends the caller when the lifeline's other end closes.
    """
    ended, _open_in_the_caller_and_its_process_1 = os.pipe()
    caller = os.getpid()
    if os.fork():
        os.close(ended)
        return
    os.setsid()
    watched = {ended} if lifeline is None else {ended, lifeline}
    _close_all_but(watched | {1, 2})
    if ended not in select.select(watched, [], [])[0]:
        os.kill(caller, signal.SIGTERM)
    os.read(ended, 1)
    sweep(folder, hierarchies, group)
    os._exit(0)


def sweep(folder: Path, hierarchies: tuple[Hierarchy, ...], group: str) -> None:
    """Remove what outlives the processes of a cluster: its control groups and the note that it is up."""
    if left := cgroups.remove(hierarchies, group):
        print(f"could not remove {', '.join(map(str, left))}", flush=True)
    (folder / "state.json").unlink(missing_ok=True)


def _close_all_but(kept: set[int]) -> None:
    for descriptor in {int(path.name) for path in Path("/proc/self/fd").iterdir()} - kept:
        with contextlib.suppress(OSError):
            os.close(descriptor)
