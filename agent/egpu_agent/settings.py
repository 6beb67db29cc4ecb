"""Where the agent finds things and what it is called; every path can be moved for a test."""

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

DEFAULT_HEALTH_PORT = 9450


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The agent's surroundings.

    Attributes:
        node: name of the Node, the ElasticGPUNode and the slices' ``nodeName``.
        kubelet_dir: kubelet's folder on the node. Kubelet serves plug-ins below /var/lib/kubelet whatever its root is.
        cdi_dir: where CDI specs are written; the runtime and the agent see it under the same path.
        state_dir: checkpoint, limits pages and library; CDI specs name it, so it has the same path on the node.
        host_root: the node's root, read-only.
        driver_root: a driver's root looked at first, or None.
        proc: the node's /proc (the agent shares the node's pid namespace).
        models: an admin's additions to the model table; it need not exist.
        kubeconfig: None inside a pod.
        xid_hold: seconds a card is unhealthy after a critical XID, if it answers all the while.
        health_port: of /healthz and /readyz; 0 serves none.
        pod_ip: address of this pod, or "" where it has none of its own.
    """

    node: str
    kubelet_dir: Path = Path("/var/lib/kubelet")
    cdi_dir: Path = Path("/var/run/cdi")
    state_dir: Path = Path("/var/lib/elasticgpu")
    host_root: Path = Path("/host")
    driver_root: Path | None = None
    proc: Path = Path("/proc")
    models: Path = Path("/etc/elasticgpu/models.yaml")
    kubeconfig: str | None = None
    xid_hold: float = 120.0
    health_port: int = DEFAULT_HEALTH_PORT
    pod_ip: str = ""

    @property
    def address(self) -> str:
        """Where the operator can ask whether this agent is ready, or ""."""
        host = f"[{self.pod_ip}]" if ":" in self.pod_ip else self.pod_ip
        return f"{host}:{self.health_port}" if host and self.health_port else ""

    @property
    def plugin_dir(self) -> Path:
        """Sockets of device plug-ins and of their registry."""
        return self.kubelet_dir / "device-plugins"

    @property
    def kubelet_socket(self) -> Path:
        """The registry."""
        return self.plugin_dir / "kubelet.sock"

    @property
    def kubelet_checkpoint(self) -> Path:
        """What the device manager has given to whom."""
        return self.plugin_dir / "kubelet_internal_checkpoint"

    @property
    def pod_resources(self) -> Path:
        """Socket of the PodResources API."""
        return self.kubelet_dir / "pod-resources" / "kubelet.sock"

    @property
    def checkpoint(self) -> Path:
        """The agent's own memory."""
        return self.state_dir / "checkpoint.json"

    @property
    def slices_dir(self) -> Path:
        """One folder a slice: limits page and usage region."""
        return self.state_dir / "slices"

    @property
    def library_dir(self) -> Path:
        """The library as containers see it."""
        return self.state_dir / "lib"

    @property
    def driver_roots(self) -> tuple[Path, ...]:
        """Where a driver may lie: a driver container's mount, the node's root, this container."""
        own = (self.driver_root,) if self.driver_root else ()
        below = Path("run/nvidia/driver")
        return (*own, self.host_root / below, self.host_root, Path("/") / below, Path("/"))

    @property
    def toolkit_dirs(self) -> tuple[Path, ...]:
        """Where the driver's own CDI specs lie."""
        return (self.host_root / "etc/cdi", Path("/etc/cdi"), self.cdi_dir)

    @classmethod
    def from_arguments(cls, arguments: Sequence[str] | None = None) -> Self:
        """From the command line; ``NODE_NAME``, ``POD_IP`` and ``KUBECONFIG`` stand in for their options."""
        found = _parser().parse_args(arguments)
        if not found.node:
            _parser().error("which node is this? Give --node, or set NODE_NAME from the downward API (spec.nodeName)")
        return cls(**vars(found))


def _parser() -> argparse.ArgumentParser:
    default = Settings(node="")
    parser = argparse.ArgumentParser(prog="egpu-agent", description=__doc__)
    parser.add_argument("--node", default=os.environ.get("NODE_NAME", ""))
    parser.add_argument("--kubeconfig", default=os.environ.get("KUBECONFIG"))
    parser.add_argument("--pod-ip", default=os.environ.get("POD_IP", ""))
    parser.add_argument("--health-port", type=int, default=default.health_port)
    parser.add_argument("--xid-hold", type=float, default=default.xid_hold)
    parser.add_argument("--driver-root", type=Path, default=None)
    for name in ("kubelet_dir", "cdi_dir", "state_dir", "host_root", "proc", "models"):
        parser.add_argument(f"--{name.replace('_', '-')}", type=Path, default=getattr(default, name))
    return parser
