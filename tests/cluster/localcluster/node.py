"""A node, as the machine reaches into it."""

from __future__ import annotations

import dataclasses
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localcluster import control, programs
from localcluster.errors import ClusterError

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclasses.dataclass(frozen=True, slots=True)
class Node:
    """A node of a running cluster."""

    name: str
    ip: str
    folder: Path
    binaries: Path

    @property
    def pid(self) -> int:
        """Process 1 of the node, as the machine numbers it."""
        return control.first_process(self.folder)

    def command(self, *argv: str) -> list[str]:
        """The command for the machine that runs `argv` inside all of the node's namespaces."""
        return enter(self.pid, self.binaries, argv)

    def exec(self, *argv: str, check: bool = True, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run a command on the node, as root; ClusterError when it fails, unless `check` is off."""
        done = subprocess.run(self.command(*argv), input=stdin, capture_output=True, text=True, check=False)
        if check and done.returncode:
            raise ClusterError(f"on {self.name}: {' '.join(argv)} ended with {done.returncode}: {done.stderr.strip()}")
        return done

    def path(self, inside: str) -> Path:
        """The place on the machine of a file inside the node; links are followed as the node sees them."""
        resolved = self.exec("readlink", "-f", inside).stdout.rstrip("\n")
        return Path(f"/proc/{self.pid}/root{resolved}")

    def read_bytes(self, inside: str) -> bytes:
        """The content of a file on the node."""
        return self.path(inside).read_bytes()

    def read_text(self, inside: str) -> str:
        """The content of a file on the node."""
        return self.path(inside).read_text()

    def kill(self, program: str, number: int = signal.SIGKILL) -> int:
        """End kubelet, containerd, gpusim by a signal and wait until it has ended; returns the exit code."""
        return int(control.call(self.folder, "stop", program=program, signal=int(number)))

    def start(self, program: str) -> None:
        """Start kubelet, containerd or gpusim again; kubelet once containerd answers, for it would end otherwise."""
        control.call(self.folder, "start", program=program)

    def status(self) -> dict[str, Any]:
        """The node's programs."""
        return dict(control.call(self.folder, "status"))

    def load_image(self, archive: Path) -> None:
        """Import an OCI archive."""
        self.exec(*programs.import_command(str(archive.resolve())))

    def log(self, program: str) -> Path:
        """Where a program's output goes."""
        return self.folder / "log" / f"{program}.log"


def enter(pid: int, programs_folder: Path, argv: Sequence[str]) -> list[str]:
    """The command that runs `argv` in the namespaces of a process 1."""
    path = f"PATH={programs_folder}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    return ["nsenter", "-t", str(pid), "-m", "-n", "-p", "-i", "-u", "-C", "--", "env", path, *argv]
