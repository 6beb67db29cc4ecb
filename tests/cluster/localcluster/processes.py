"""The processes of one process 1: started by name, killed by name, and every orphan reaped."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from localcluster.errors import ClusterError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from localcluster.programs import Program


@dataclass(slots=True, kw_only=True)
class _State:
    program: Program
    pid: int = 0
    exit_code: int | None = None
    starts: int = 0

    @property
    def running(self) -> bool:
        return self.pid != 0 and self.exit_code is None


class ProcessTable:
    """Processes by name.

    `reap_forever` is for the main thread; every other method may be called from any thread.
    """

    def __init__(self, *, environment: Mapping[str, str], logs: Path) -> None:
        self._environment = dict(environment)
        self._logs = logs
        self._states: dict[str, _State] = {}
        self._changed = threading.Condition()
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})

    def add(self, program: Program) -> None:
        """Make a program known without starting it."""
        with self._changed:
            self._states[program.name] = _State(program=program)

    def program(self, name: str) -> Program:
        """The program of that name; ClusterError when there is none."""
        with self._changed:
            return self._state(name).program

    def start(self, name: str) -> None:
        """Start a program; nothing happens when it runs already."""
        with self._changed:
            state = self._state(name)
            if state.running:
                return
            state.pid, state.exit_code = self._spawn(state.program), None
            state.starts += 1
            self._changed.notify_all()

    def stop(self, name: str, *, number: int, timeout: float = 30.0) -> int:
        """Send a signal and wait for the end.

        Returns:
            The exit code, negative for a signal; that of the last run when it does not run.

        Raises:
            ClusterError: It runs on after so many seconds, or was never started.
        """
        with self._changed:
            state = self._state(name)
            if state.running:
                os.kill(state.pid, number)
            if not self._changed.wait_for(lambda: not state.running, timeout):
                raise ClusterError(f"{name} runs on {timeout:.0f} s after signal {number}: send signal 9")
            if state.exit_code is None:
                raise ClusterError(f"{name} has never been started")
            return state.exit_code

    def exit_code(self, name: str) -> int | None:
        """The exit code of the last run; None while it runs or before the first."""
        with self._changed:
            return self._state(name).exit_code

    def status(self) -> dict[str, dict[str, object]]:
        """Every program with pid (within this pid namespace), exit code and number of starts."""
        with self._changed:
            return {
                name: {
                    "running": state.running,
                    "pid": state.pid,
                    "exit_code": state.exit_code,
                    "starts": state.starts,
                    "once": state.program.once,
                }
                for name, state in self._states.items()
            }

    def reap_forever(self) -> None:
        """Collect ended processes, ours and the orphans that fall to process 1."""
        while True:
            signal.sigwait({signal.SIGCHLD})
            self._reap()

    def _reap(self) -> None:
        # The lock keeps a process that ends at once from being collected before `start` has noted its pid.
        with self._changed:
            while (ended := _next_ended()) is not None:
                self._note(*ended)
            self._changed.notify_all()

    def _note(self, pid: int, code: int) -> None:
        for name, state in self._states.items():
            if state.pid == pid and state.running:
                state.exit_code = code
                say(f"{name} ended with {code}")

    def _state(self, name: str) -> _State:
        if name not in self._states:
            raise ClusterError(f"no program {name!r} here: there are {', '.join(self._states)}")
        return self._states[name]

    def _spawn(self, program: Program) -> int:
        say(f"{program.name} starts")
        log = str(self._logs / f"{program.name}.log")
        flags = os.O_CREAT | os.O_WRONLY | os.O_APPEND
        path = shutil.which(program.argv[0], path=self._environment["PATH"])
        if path is None:
            raise ClusterError(f"{program.argv[0]} is not on {self._environment['PATH']}")
        return os.posix_spawn(
            path,
            program.argv,
            self._environment,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, log, flags, 0o644),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setsid=True,
            setsigmask=[],
        )


def _next_ended() -> tuple[int, int] | None:
    try:
        pid, status = os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return None
    return (pid, os.waitstatus_to_exitcode(status)) if pid else None


def say(text: str) -> None:
    """A line in the log of this process 1."""
    print(f"{time.strftime('%H:%M:%S')}.{int(time.time() * 1000) % 1000:03d} {text}", flush=True)
