"""`LocalCluster`: bring a cluster up, reach into it, take it down."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from localcluster import apt, binaries, cgroups, configs, control, image, linux, pki, probes, readiness, sweeper
from localcluster import spec as specs
from localcluster.errors import ClusterError
from localcluster.existing import run_kubectl
from localcluster.node import Node, enter
from localcluster.spec import ClusterSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType


def default_folder() -> Path:
    """The per-user folder of a person's own cluster."""
    root = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state"
    return Path(root) / "elasticgpu/cluster"


class LocalCluster:
    """A cluster in a folder. As a context manager it comes up on entry and is gone on exit.

    Args:
        folder: Everything it writes lies here; it must not exist or be a former cluster's. Wants a real filesystem.
        nodes: How many nodes; 0 is etcd, kube-apiserver and kube-controller-manager alone, on the machine's loopback
            address, so that webhooks of the machine can be reached from it.
        gpus: gpusim's configuration; None for nodes without cards.
        images: OCI archives that every node is to have from the start.
        apiserver_args: More arguments for kube-apiserver.
        attached: The cluster ends with this process, however that ends.
        tell: Takes lines of progress.
    """

    has_node_access = True

    def __init__(
        self,
        folder: Path,
        *,
        nodes: int = 1,
        gpus: Path | None = None,
        images: Sequence[Path] = (),
        apiserver_args: Sequence[str] = (),
        attached: bool = True,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.folder = folder.absolute()
        self._wanted = specs.node_specs(nodes)
        self._gpus = gpus.resolve() if gpus else None
        self._images = tuple(image.resolve() for image in images)
        self._apiserver_args = tuple(apiserver_args)
        self._attached = attached
        self._tell = tell
        self._supervisor: subprocess.Popen[bytes] | None = None
        self._lifeline: int | None = None

    def __enter__(self) -> Self:
        self.up()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down(keep=kind is not None)

    @property
    def spec(self) -> ClusterSpec:
        """What was brought up in the folder."""
        return specs.load(self.folder)

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig, for programs on the machine."""
        return self.folder / "kubeconfig"

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes."""
        return tuple(self.node(node.name) for node in self.spec.nodes)

    def node(self, name: str) -> Node:
        """The node of that name, such as node-a."""
        spec = self.spec
        node = spec.node(name)
        return Node(node.name, node.ip, spec.node_folder(name), spec.binaries)

    def is_up(self) -> bool:
        """Whether its supervisor runs."""
        state = self._state()
        return state is not None and linux.start_time(state["supervisor"]) == state["started"]

    def up(self, *, timeout: float = 120.0) -> None:
        """Bring it up and wait until every node is Ready, its images are there and names resolve.

        Raises:
            ClusterError: Something is missing on the machine, the folder is taken, a program ended, or time ran out.
                What was started is ended again; the logs stay in the folder.
        """
        spec = self._prepare()
        started = time.monotonic()
        try:
            for text in readiness.wait(spec, deadline=started + timeout, alive=self._check_supervisor):
                self._tell(f"{time.monotonic() - started:6.1f} s  {text}")
        except BaseException:
            self.down(keep=True)
            raise

    def down(self, *, keep: bool = False) -> None:
        """End every process of the cluster and remove its control groups and, unless `keep`, its folder."""
        if self._supervisor is not None:
            self._supervisor.terminate()
            self._supervisor.wait()
            self._supervisor = None
        state = self._state()
        if state is not None:
            self._end(state)
        if self._lifeline is not None:
            os.close(self._lifeline)
            self._lifeline = None
        if not keep and (self.folder / "spec.json").exists():
            shutil.rmtree(self.folder)

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """Run kubectl and return what it prints; ClusterError with its complaint when it fails."""
        return run_kubectl(self.spec.binaries / "kubectl", self.kubeconfig, arguments, stdin=stdin)

    def command(self, *argv: str) -> list[str]:
        """The command for the machine that runs `argv` in the namespaces of the control plane."""
        return enter(control.first_process(self.folder), self.spec.binaries, argv)

    def stop(self, program: str, *, number: int | None = None) -> int:
        """End a program of the control plane by a signal (SIGKILL), or cut the power of the node of that name.

        Returns:
            Its exit code, once it has ended and, of a node, every process with it.
        """
        if number is None:
            # A node's supervisor kills the node's processes and waits for them when it is told so by SIGTERM.
            is_node = program in {node.name for node in self.spec.nodes}
            number = signal.SIGTERM if is_node else signal.SIGKILL
        return int(control.call(self.folder, "stop", program=program, signal=int(number)))

    def start(self, program: str) -> None:
        """Start a program of the control plane, or a node, again."""
        control.call(self.folder, "start", program=program)

    def status(self) -> dict[str, Any]:
        """The programs of the control plane, the nodes among them."""
        return dict(control.call(self.folder, "status"))

    def load_image(self, archive: Path) -> None:
        """Import an OCI archive on every node."""
        for node in self.nodes:
            node.load_image(archive)

    def get(self, path: str) -> Any:
        """GET from kube-apiserver as administrator, for a look without a client library."""
        return readiness.get(self.spec, path)

    def _state(self) -> dict[str, Any] | None:
        try:
            return dict(json.loads((self.folder / "state.json").read_text()))
        except FileNotFoundError:
            return None

    def _prepare(self) -> ClusterSpec:
        _check_machine(self.folder, nodes=bool(self._wanted))
        if self.is_up():
            raise ClusterError(f"a cluster is up in {self.folder} already: take it down or choose another folder")
        self.down()
        programs_folder = binaries.folder(binaries.EVERYTHING if self._wanted else binaries.CONTROL_PLANE)
        (self.folder / "log").mkdir(parents=True)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            spec = self._spec(programs_folder, listener.getsockname()[1])
            specs.save(spec)
            pki.write(spec)
            configs.write(spec)
            self._launch(listener if spec.nodes else None)
        return spec

    def _spec(self, programs_folder: Path, port: int) -> ClusterSpec:
        spec = ClusterSpec(
            folder=self.folder,
            binaries=programs_folder,
            nodes=self._wanted,
            images=(image.archive(image.pause()), *self._images) if self._wanted else (),
            gpus=self._gpus,
            host_port=port,
            apiserver_args=self._apiserver_args,
        )
        if spec.nodes:
            return spec
        api_port, etcd_port = _free_ports(2)
        return dataclasses.replace(spec, host_port=api_port, api_port=api_port, etcd_port=etcd_port)

    def _launch(self, listener: socket.socket | None) -> None:
        command = [sys.executable, "-m", "localcluster.supervise", "cluster", str(self.folder)]
        passed = []
        if listener is not None:
            passed.append(listener.fileno())
            command += ["--listener", str(listener.fileno())]
        theirs = None
        if self._attached:
            theirs, self._lifeline = os.pipe()
            passed.append(theirs)
            command += ["--lifeline", str(theirs)]
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1])}
        with (self.folder / "log/cluster.log").open("ab") as log:
            self._supervisor = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=passed,
                env=environment,
                start_new_session=True,
            )
        if theirs is not None:
            os.close(theirs)

    def _check_supervisor(self) -> None:
        if self._supervisor is not None and self._supervisor.poll() is not None:
            log = readiness.tail(self.folder / "log/cluster.log")
            raise ClusterError(f"the supervisor ended with {self._supervisor.returncode}: {log}")

    def _end(self, state: dict[str, Any]) -> None:
        note = self.folder / "state.json"
        alive = linux.start_time(state["supervisor"]) == state["started"]
        if alive:
            os.kill(state["supervisor"], signal.SIGTERM)
        if probes.wait(lambda: not note.exists(), timeout=15.0, interval=0.01):
            return
        sweeper.sweep(self.folder, cgroups.observe() if self.spec.nodes else (), state["group"])


def _free_ports(count: int) -> list[int]:
    """Different ports of the loopback address that were free a moment ago."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [int(item.getsockname()[1]) for item in sockets]


def _check_machine(folder: Path, *, nodes: bool) -> None:
    if os.geteuid():
        raise ClusterError("a cluster makes namespaces and mounts: run this as root")
    if nodes and (missing := apt.missing_apt_packages()):
        raise ClusterError(f"missing on this machine: {', '.join(missing)}. Run: {apt.install_command(missing)}")
    if folder.exists() and not (folder / "spec.json").exists() and any(folder.iterdir()):
        raise ClusterError(f"{folder} holds something else: choose another folder")
