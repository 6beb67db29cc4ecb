"""The few system calls that Python 3.11 lacks. Errors are OSError with the call in the message."""

from __future__ import annotations

import ctypes
import enum
import os
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_libc = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG = 1
_MNT_DETACH = 2


class Namespace(enum.IntFlag):
    """The flags of unshare(2)."""

    MOUNT = 0x20000
    CGROUP = 0x2000000
    UTS = 0x4000000
    IPC = 0x8000000
    PID = 0x20000000
    NET = 0x40000000


class Mount(enum.IntFlag):
    """The flags of mount(2)."""

    NONE = 0
    NOSUID = 2
    NODEV = 4
    NOEXEC = 8
    BIND = 4096
    RECURSIVE = 16384
    PRIVATE = 1 << 18
    SHARED = 1 << 20


def _check(result: int, what: str) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _bytes(text: str | Path | None) -> bytes | None:
    return None if text is None else str(text).encode()


def mount(
    source: str | Path | None,
    target: str | Path,
    *,
    kind: str | None = None,
    flags: Mount = Mount.NONE,
    data: str | None = None,
) -> None:
    """mount(2)."""
    result = _libc.mount(_bytes(source), _bytes(target), _bytes(kind), ctypes.c_ulong(flags), _bytes(data))
    _check(result, f"mount {source} on {target} ({kind or flags!r})")


def detach(target: str | Path) -> None:
    """Take away what is mounted there, and below, from this mount namespace."""
    _check(_libc.umount2(_bytes(target), _MNT_DETACH), f"umount {target}")


def unshare(namespaces: Namespace) -> None:
    """unshare(2)."""
    _check(_libc.unshare(int(namespaces)), f"unshare {namespaces!r}")


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends."""
    _check(_libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl PR_SET_PDEATHSIG")


def run_as_first_process(main: Callable[[], None]) -> int:
    """Run `main` as process 1 of a new pid namespace and wait for its end.

    When the caller ends, so does process 1, and with it every process of that namespace; a SIGTERM to the caller ends
    them first and the caller after them. Call it once in a process, and before that process has threads.

    Returns:
        The exit code of process 1, negative for a signal.
    """
    unshare(Namespace.PID)
    alive, still_alive = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(still_alive)
        die_with_parent()
        # The parent may have ended before the line above; then nobody writes here.
        if os.read(alive, 1):
            os.close(alive)
            _run_and_exit(main)
        os._exit(1)
    os.close(alive)
    signal.signal(signal.SIGTERM, lambda *_: os.kill(pid, signal.SIGKILL))
    os.write(still_alive, b"x")
    os.close(still_alive)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _run_and_exit(main: Callable[[], None]) -> None:
    code = 1
    try:
        main()
        code = 0
    except BaseException:  # noqa: BLE001 - a child of fork must not return into its parent's stack
        import traceback  # noqa: PLC0415 - needed on this path alone

        traceback.print_exc()
    finally:
        os._exit(code)


def start_time(pid: int) -> str | None:
    """When a process started, in the kernel's ticks; None for one that has ended.

    With the pid it names a process for good.
    """
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as stat:  # noqa: PTH123
            fields = stat.read().rsplit(")", 1)[1].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]
