"""What a cluster is to be. Written once as `spec.json`, read by every process of the cluster."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

from localcluster import constants
from localcluster.errors import ClusterError


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSpec:
    """A node: a kubelet and a containerd in a mount, pid, ipc, uts and cgroup namespace of their own."""

    name: str
    ip: str
    pod_ips: tuple[str, str]
    """First and last address for its pods."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSpec:
    """A cluster. Without nodes it is a control plane alone, in the network namespace of the machine."""

    folder: Path
    """Everything that the cluster writes lies here."""
    binaries: Path
    nodes: tuple[NodeSpec, ...] = ()
    images: tuple[Path, ...] = ()
    """OCI archives to import on every node while it comes up."""
    gpus: Path | None = None
    """gpusim's configuration, by node."""
    etcd_port: int = constants.ETCD_PORT
    api_port: int = constants.API_PORT
    """Where kube-apiserver listens, within its network namespace."""
    host_port: int = 0
    """Where the machine reaches kube-apiserver, on the loopback address."""
    apiserver_args: tuple[str, ...] = ()

    @property
    def api_ip(self) -> str:
        """The address that the cluster's own parts use for kube-apiserver."""
        return constants.CONTROL_PLANE_IP if self.nodes else "127.0.0.1"

    @property
    def api_url(self) -> str:
        """The address that the cluster's own parts use for kube-apiserver."""
        return f"https://{self.api_ip}:{self.api_port}"

    def node(self, name: str) -> NodeSpec:
        """The node of that name; ClusterError when there is none."""
        for node in self.nodes:
            if node.name == name:
                return node
        known = ", ".join(node.name for node in self.nodes) or "none, it is a control plane alone"
        raise ClusterError(f"no node {name!r} in the cluster of {self.folder}: its nodes are {known}")

    def node_folder(self, name: str) -> Path:
        """Where a node's files lie on the machine."""
        return self.folder / "nodes" / name


def node_specs(count: int) -> tuple[NodeSpec, ...]:
    """Specs of so many nodes: node-a at 10.88.0.1, node-b at 10.88.0.2 and so on."""
    if not 0 <= count <= constants.MAX_NODES:
        raise ClusterError(f"{count} nodes asked for: write a number from 0 to {constants.MAX_NODES}")
    return tuple(
        NodeSpec(
            name=f"node-{chr(ord('a') + index)}",
            ip=f"10.88.0.{index + 1}",
            pod_ips=(f"10.88.{index + 1}.1", f"10.88.{index + 1}.254"),
        )
        for index in range(count)
    )


def save(spec: ClusterSpec) -> None:
    """Write the spec into its own folder."""
    (spec.folder / "spec.json").write_text(json.dumps(dataclasses.asdict(spec), default=str, indent=1))


def load(folder: Path) -> ClusterSpec:
    """Read the spec of a folder; ClusterError when no cluster was ever made there."""
    try:
        raw = json.loads((folder / "spec.json").read_text())
    except FileNotFoundError:
        raise ClusterError(f"no cluster in {folder}: bring one up with `python -m localcluster up`") from None
    raw["folder"], raw["binaries"] = Path(raw["folder"]), Path(raw["binaries"])
    raw["gpus"] = Path(raw["gpus"]) if raw["gpus"] else None
    raw["images"] = tuple(Path(image) for image in raw["images"])
    raw["apiserver_args"] = tuple(raw["apiserver_args"])
    raw["nodes"] = tuple(NodeSpec(**{**node, "pod_ips": tuple(node["pod_ips"])}) for node in raw["nodes"])
    return ClusterSpec(**raw)
