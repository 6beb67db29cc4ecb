"""A cluster that somebody else runs, behind the same words as far as they go."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from localcluster.errors import ClusterError, NoNodeAccess

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class ExistingCluster:
    """A cluster known by its kubeconfig.

    What needs its processes or its nodes' files raises NoNodeAccess, whose message is the reason to skip a test.
    """

    kubeconfig: Path
    has_node_access: bool = False

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """Run kubectl and return what it prints; ClusterError with its complaint when it fails."""
        return run_kubectl("kubectl", self.kubeconfig, arguments, stdin=stdin)

    def node(self, name: str) -> NoReturn:
        """Refuses."""
        raise NoNodeAccess(
            f"this test reaches into {name}; the cluster of {self.kubeconfig} gives no access to its nodes"
        )

    def stop(self, program: str, *, number: int = 15) -> NoReturn:
        """Refuses."""
        raise NoNodeAccess(
            f"this test sends {program} signal {number}; the cluster of {self.kubeconfig} is not ours to break"
        )

    def start(self, program: str) -> NoReturn:
        """Refuses."""
        raise NoNodeAccess(f"this test starts {program}; the cluster of {self.kubeconfig} is not ours to run")

    def load_image(self, archive: Path) -> NoReturn:
        """Refuses."""
        raise NoNodeAccess(
            f"load {archive} into the cluster of {self.kubeconfig} by its own means, such as `kind load image-archive`"
        )


def from_kubeconfig(path: Path) -> ExistingCluster:
    """The cluster of that kubeconfig."""
    if not path.is_file():
        raise ClusterError(f"no kubeconfig at {path}")
    return ExistingCluster(path.resolve())


def run_kubectl(program: str | Path, kubeconfig: Path, arguments: tuple[str, ...], *, stdin: str | None = None) -> str:
    """Run kubectl and return what it prints; ClusterError with its complaint when it fails."""
    command = [str(program), f"--kubeconfig={kubeconfig}", *arguments]
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ClusterError(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout
