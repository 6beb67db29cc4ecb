"""What a test may not leave behind: bookings, slices, CDI specs, pages, memory of a card."""

from collections.abc import Sequence

from egpu_testing import truth
from egpu_testing.stack import Stack
from egpu_testing.waiting import until
from localcluster.cluster import LocalCluster

WORKLOADS = ("deployments", "pods", "egpuc")
KINDS = (*WORKLOADS, "egpu", "egpuclass")


def clear(stack: Stack) -> None:
    """Deletes every pod, claim, slice and class, in that order, and waits until they are gone."""
    _delete(stack, KINDS)


def clear_workloads(stack: Stack) -> None:
    """The same for Deployments, pods and claims alone."""
    _delete(stack, WORKLOADS)


def _delete(stack: Stack, kinds: Sequence[str]) -> None:
    for kind in kinds:
        stack.cluster.kubectl("delete", kind, "--all", "--wait=true", "--timeout=90s", "--ignore-not-found")


def expect_none(stack: Stack) -> None:
    """Nothing of any slice is left at the API server, on a node or on a card."""
    until("no card is booked", lambda: not bookings(stack), timeout=30)
    local = stack.cluster
    if isinstance(local, LocalCluster):
        until("no node holds anything of a slice", lambda: not on_nodes(local), timeout=30)


def bookings(stack: Stack) -> list[str]:
    """Every booking as ``node card slice``."""
    return [
        f"{node['metadata']['name']} {card} {name}"
        for node in stack.list("egpun")
        for card, booked in node.get("spec", {}).get("bookings", {}).items()
        for name in booked["slices"]
    ]


def on_nodes(cluster: LocalCluster) -> list[str]:
    """Every CDI spec, slice folder and process on a card."""
    found: list[str] = []
    for node in cluster.nodes:
        listing = node.exec(
            "sh", "-c", "ls -d /var/run/cdi/elasticgpu.io-* /var/lib/elasticgpu/slices/* 2>/dev/null", check=False
        )
        found += [f"{node.name} {line}" for line in listing.stdout.split()]
        holders = [row for row in truth.read(node).processes if any(usage.used for usage in row.cards.values())]
        found += [f"{node.name} pid {row.pid} {row.comm}" for row in holders]
    return found
