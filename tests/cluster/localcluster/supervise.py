"""The processes that hold a cluster together.

`python -m localcluster.supervise cluster FOLDER` is the supervisor: it makes the cluster's namespaces and waits for
their process 1. When it ends, however it ends, the kernel ends process 1 and with it everything inside; the sweeper,
which outlives it for a moment, removes the control groups. `… node FOLDER NAME`, started by the cluster's process 1,
does the same for a node.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from localcluster import cgroups, constants, control, forward, linux, mounts, probes, programs, sweeper
from localcluster import spec as specs
from localcluster.errors import ClusterError
from localcluster.linux import Namespace
from localcluster.processes import ProcessTable, say

if TYPE_CHECKING:
    from localcluster.programs import Program
    from localcluster.spec import ClusterSpec, NodeSpec

_PATIENCE = 600.0
"""Seconds that a program waits for what it needs; whoever brings the cluster up has a shorter deadline."""


def supervise_cluster(spec: ClusterSpec, *, listener: int | None, lifeline: int | None) -> int:
    """Run the cluster until its process 1 ends, or until the other end of the lifeline closes."""
    group = f"elasticgpu-{os.urandom(4).hex()}"
    hierarchies = cgroups.observe() if spec.nodes else ()
    state = {"supervisor": os.getpid(), "started": linux.start_time(os.getpid()), "group": group}
    scratch = spec.folder / "state.json.new"
    scratch.write_text(json.dumps(state))
    scratch.rename(spec.folder / "state.json")
    sweeper.start(spec.folder, hierarchies, group, lifeline)
    cgroups.create(hierarchies, group)
    return linux.run_as_first_process(
        lambda: _cluster_main(spec, listener=listener, hierarchies=hierarchies, group=group)
    )


def _cluster_main(
    spec: ClusterSpec, *, listener: int | None, hierarchies: tuple[cgroups.Hierarchy, ...], group: str
) -> None:
    os.setsid()
    cgroups.join(hierarchies, group)
    linux.unshare(Namespace.MOUNT | Namespace.IPC | Namespace.UTS | (Namespace.NET if spec.nodes else Namespace(0)))
    mounts.cluster(spec)
    if spec.nodes:
        linux.unshare(Namespace.CGROUP)
        mounts.sys_of_this_network()
        cgroups.mount_private(hierarchies)
        _network(spec)
        socket.sethostname("control-plane")
    if listener is not None:
        forward.serve(socket.socket(fileno=listener), (spec.api_ip, spec.api_port))
    _serve(spec, spec.folder, programs.control_plane(spec), logs=spec.folder / "log")


def _network(spec: ClusterSpec) -> None:
    """The bridge that the CNI plugin uses too. Without a default route there is no way to a Service from here."""
    bridge = constants.BRIDGE
    commands = [
        "link set lo up",
        # With an address of its own; else it takes over a pod's, and pods lose it when that pod goes.
        f"link add {bridge} address {constants.BRIDGE_MAC} type bridge",
        f"address add {constants.CONTROL_PLANE_IP}/16 dev {bridge}",
        *(f"address add {node.ip}/32 dev {bridge}" for node in spec.nodes[1:]),
        f"link set {bridge} up",
        f"route add default dev {bridge} src {constants.CONTROL_PLANE_IP}",
    ]
    subprocess.run(["ip", "-batch", "-"], input="\n".join(commands), text=True, check=True)
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")


def supervise_node(spec: ClusterSpec, node: NodeSpec) -> int:
    """Run the node until its process 1 ends."""
    hierarchies = cgroups.observe()
    # A former life of the node may have left its groups.
    cgroups.remove(hierarchies, node.name)
    cgroups.create(hierarchies, node.name)
    return linux.run_as_first_process(lambda: _node_main(spec, node, hierarchies))


def _node_main(spec: ClusterSpec, node: NodeSpec, hierarchies: tuple[cgroups.Hierarchy, ...]) -> None:
    os.setsid()
    cgroups.join(hierarchies, node.name)
    linux.unshare(Namespace.MOUNT | Namespace.IPC | Namespace.UTS | Namespace.CGROUP)
    mounts.node(spec, node)
    mounts.sys_of_this_network()
    cgroups.mount_private(hierarchies)
    socket.sethostname(node.name)
    folder = spec.node_folder(node.name)
    _serve(spec, folder, programs.node_programs(spec, node), logs=folder / "log")


def _serve(spec: ClusterSpec, folder: Path, wanted: tuple[Program, ...], *, logs: Path) -> None:
    """Be process 1: start the programs in order, take orders, reap."""
    table = ProcessTable(environment=_environment(spec), logs=logs)
    for program in wanted:
        table.add(program)
    control.serve(control.listen(folder), lambda order: _obey(spec, table, order))
    threading.Thread(target=_boot, args=(spec, table, wanted), name="boot", daemon=True).start()
    table.reap_forever()


def _environment(spec: ClusterSpec) -> dict[str, str]:
    package = Path(__file__).resolve().parents[1]
    return {
        "PATH": f"{spec.binaries}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "PYTHONPATH": os.pathsep.join([str(package), str(package.parent / "gpusim")]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "HOME": "/run",
        "TMPDIR": "/run",
    }


def _boot(spec: ClusterSpec, table: ProcessTable, wanted: tuple[Program, ...]) -> None:
    for program in wanted:
        _start(spec, table, program.name)


def _start(spec: ClusterSpec, table: ProcessTable, name: str) -> None:
    """Start a program once everything that it waits for is there, or in spite of it when that never comes."""
    for address in table.program(name).after:
        if not probes.wait(partial(_ready, spec, table, address), timeout=_PATIENCE):
            say(f"{name} waits for {address} in vain")
    table.start(name)


def _ready(spec: ClusterSpec, table: ProcessTable, address: str) -> bool:
    if "://" in address:
        return probes.answers(address, authority=spec.folder / "pki/ca.crt")
    return table.exit_code(address) is not None


def _obey(spec: ClusterSpec, table: ProcessTable, order: control.Order) -> object:
    match order:
        case {"order": "status"}:
            return table.status()
        case {"order": "start", "program": name}:
            _start(spec, table, name)
            return None
        case {"order": "answers", "address": address}:
            return probes.answers(address, authority=spec.folder / "pki/ca.crt")
        case {"order": "stop", "program": name, "signal": number}:
            return table.stop(name, number=number)
    raise ClusterError(f"no such order: {order}")


def main() -> int:
    """Entry point of `python -m localcluster.supervise`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["cluster", "node"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("node", nargs="?", default="")
    parser.add_argument("--listener", type=int)
    parser.add_argument("--lifeline", type=int)
    arguments = parser.parse_args()
    spec = specs.load(arguments.folder)
    for descriptor in (arguments.listener, arguments.lifeline):
        if descriptor is not None:
            os.set_inheritable(descriptor, False)  # noqa: FBT003 - the standard library's signature
    if arguments.what == "node":
        return supervise_node(spec, spec.node(arguments.node))
    return supervise_cluster(spec, listener=arguments.listener, lifeline=arguments.lifeline)


if __name__ == "__main__":
    sys.exit(main())
