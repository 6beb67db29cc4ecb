"""``make demo``: a real cluster, the product, and two pods on one card."""

import argparse
import subprocess
import sys
import time
from pathlib import Path

from egpu_testing import artifacts
from egpu_testing.stack import ROOT, Stack
from egpu_testing.truth import card_truth
from egpu_testing.waiting import Timeout, until
from localcluster.cluster import LocalCluster, default_folder
from localcluster.errors import ClusterError

EXAMPLE = ROOT / "examples/01-two-pods-one-card"
PODS = ("quarter", "half")
LAST_LINE = "as much again"


def folder() -> Path:
    """Where the demo's cluster lives."""
    return default_folder().with_name("demo")


class Progress:
    """Lines with the time since the start."""

    def __init__(self) -> None:
        self._start = time.monotonic()

    def __call__(self, text: str) -> None:
        """Says one thing."""
        print(f"{time.monotonic() - self._start:6.1f} s  {text}", flush=True)


def up() -> None:
    """Brings everything up and shows it. Safe to repeat."""
    tell = Progress()
    archives = artifacts.images(tell=tell)
    cluster = LocalCluster(
        folder(),
        nodes=1,
        gpus=ROOT / "tests/support/cards/demo.yaml",
        images=archives,
        attached=False,
        tell=lambda _: None,
    )
    if cluster.is_up():
        tell(f"the cluster is up already; KUBECONFIG={cluster.kubeconfig}")
    else:
        tell("bringing up etcd, kube-apiserver, kube-scheduler, kubelet, containerd, in namespaces of their own")
        cluster.up()
        tell("node-a is Ready")
    stack = Stack(cluster, tell=tell)
    stack.install()
    stack.apply(EXAMPLE)
    tell(f"{EXAMPLE.relative_to(ROOT)} applied")
    stack.running(*PODS)
    until("both have spoken", lambda: all(LAST_LINE in stack.logs(pod) for pod in PODS), timeout=30)
    tell("both pods run")
    show(cluster, stack)


def show(cluster: LocalCluster, stack: Stack) -> None:
    """Prints what there is, what each container says, and what the card knows."""
    _say("kubectl get egpuclass,egpuc,egpu,egpun,pods")
    print(cluster.kubectl("get", "egpuclass,egpuc,egpu,egpun,pods"))
    for pod in PODS:
        _say(f"kubectl logs {pod}")
        print(stack.logs(pod))
    _say("what the card itself counts (the simulated driver's ground truth)")
    for line in card_truth(cluster.nodes[0]):
        print(line)
    programs = cluster.spec.binaries
    print(
        f"\nGo on by hand:\n  export KUBECONFIG={cluster.kubeconfig}\n  export PATH={programs}:$PATH\n"
        "  kubectl explain egpuc.spec.resources.requests\n  kubectl exec quarter -- cat /etc/ld.so.preload\n"
        "  kubectl delete pod half\n\nmake demo-down ends it and leaves nothing behind."
    )


def down() -> None:
    """Ends the demo's cluster."""
    LocalCluster(folder(), attached=False).down()
    print("the demo's cluster is gone")


def _say(command: str) -> None:
    print(f"\n\033[1m$ {command}\033[0m" if sys.stdout.isatty() else f"\n$ {command}")


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m egpu_testing.demo", description=__doc__)
    parser.add_argument("command", choices=["up", "down"])
    try:
        {"up": up, "down": down}[parser.parse_args().command]()
    except (ClusterError, Timeout, subprocess.CalledProcessError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
