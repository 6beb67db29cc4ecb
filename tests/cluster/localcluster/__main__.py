"""`python -m localcluster`: a Kubernetes cluster on this machine, for people."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import NoReturn

from localcluster import apt, binaries, image
from localcluster.cluster import LocalCluster, default_folder
from localcluster.errors import ClusterError


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m localcluster", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("apt", help="install what is missing on this machine, or say how")
    build = commands.add_parser("binaries", help="print the folder of the programs; builds what is missing")
    build.add_argument("--control-plane-only", action="store_true")

    commands.add_parser("image", help="print an archive of the project's, the demo's and kube-scheduler's image")

    up = _with_folder(commands.add_parser("up", help="bring a cluster up"))
    up.add_argument("--nodes", type=int, default=1)
    up.add_argument(
        "--control-plane-only", action="store_true", help="etcd, kube-apiserver, kube-controller-manager: no node"
    )
    up.add_argument("--gpus", type=Path, metavar="FILE.yaml", help="cards to simulate, by node")
    up.add_argument(
        "--image", type=Path, action="append", default=[], metavar="FILE.tar", help="OCI archive for every node"
    )
    up.add_argument("--apiserver-arg", action="append", default=[], metavar="--FLAG=VALUE")

    down = _with_folder(commands.add_parser("down", help="take it down, leaving nothing"))
    down.add_argument("--keep", action="store_true", help="leave the folder with the logs")
    _with_folder(commands.add_parser("status", help="say what runs"))
    _with_rest(_with_folder(commands.add_parser("kubectl", help="kubectl -- get pods")))
    inside = _with_rest(_with_folder(commands.add_parser("exec", help="exec --node node-a -- COMMAND")))
    inside.add_argument("--node", metavar="NAME", help="a node; else the control plane")
    load = _with_folder(commands.add_parser("load-image", help="import an OCI archive on every node"))
    load.add_argument("archive", type=Path, metavar="FILE.tar")
    return parser


def _with_folder(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.add_argument("--dir", type=Path, default=default_folder(), help="the cluster's folder (%(default)s)")
    return parser


def _with_rest(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.add_argument("rest", nargs="*", metavar="-- ARGUMENT")
    return parser


def _up(arguments: argparse.Namespace) -> None:
    cluster = LocalCluster(
        arguments.dir,
        nodes=0 if arguments.control_plane_only else arguments.nodes,
        gpus=arguments.gpus,
        images=arguments.image,
        apiserver_args=arguments.apiserver_arg,
        attached=False,
        tell=lambda text: print(text, flush=True),
    )
    cluster.up()
    print(f"export KUBECONFIG={cluster.kubeconfig}")


def _status(cluster: LocalCluster) -> int:
    if not cluster.is_up():
        print(f"no cluster is up in {cluster.folder}")
        return 1
    print(f"up in {cluster.folder}, KUBECONFIG={cluster.kubeconfig}")
    for where, programs in [
        ("control plane", cluster.status()),
        *((node.name, node.status()) for node in cluster.nodes),
    ]:
        for name, item in programs.items():
            state = f"runs, pid {item['pid']}" if item["running"] else f"ended with {item['exit_code']}"
            print(f"  {where:14} {name:24} {state}")
    return 0


def _run(arguments: argparse.Namespace) -> int:
    match arguments.command:
        case "apt":
            return apt.install()
        case "binaries":
            print(binaries.folder(binaries.CONTROL_PLANE if arguments.control_plane_only else binaries.EVERYTHING))
            return 0
        case "image":
            print(image.archive(image.product(), image.demo(), image.scheduler()))
            return 0
        case "up":
            _up(arguments)
            return 0
    cluster = LocalCluster(arguments.dir)
    match arguments.command:
        case "down":
            cluster.down(keep=arguments.keep)
        case "status":
            return _status(cluster)
        case "load-image":
            cluster.load_image(arguments.archive)
        case "kubectl":
            kubectl = cluster.spec.binaries / "kubectl"
            _become([str(kubectl), f"--kubeconfig={cluster.kubeconfig}", *arguments.rest])
        case "exec":
            where = cluster.node(arguments.node) if arguments.node else cluster
            _become(where.command(*(arguments.rest or ["bash"])))
    return 0


def _become(command: list[str]) -> NoReturn:
    os.execvp(command[0], command)  # noqa: S606 - a fixed list, no shell wanted


def main() -> int:
    """Entry point."""
    try:
        return _run(_parser().parse_args())
    except ClusterError as error:
        print(f"localcluster: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
