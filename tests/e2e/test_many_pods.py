"""Many pods at once: each container gets exactly its own slice, nearly as fast as a pod without one starts."""

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from egpu_testing import objects
from egpu_testing.stack import Stack
from egpu_testing.waiting import until

from egpu_vgpu import limits
from localcluster.cluster import Node

pytestmark = pytest.mark.e2e

COUNT = 40
MIB = 1024**2
NODE = "node-b"
MOST_RATIO = 1.5
ON_NODE = {"nodeSelector": {"kubernetes.io/hostname": NODE}}


def page_of(stack: Stack, pod: str, container: str = "main") -> limits.LimitsPage:
    """The limits page as the container itself read it."""
    until(f"{pod}/{container} has spoken", lambda: "ready" in stack.logs(pod, container=container), timeout=60)
    line = next(line for line in stack.logs(pod, container=container).splitlines() if line.startswith("page "))
    with tempfile.NamedTemporaryFile() as file:
        file.write(bytes.fromhex(line.removeprefix("page ")))
        file.flush()
        return limits.read(Path(file.name))


def assert_own_page(stack: Stack, pod: str, claim: str, *, memory: int, core: int, container: str = "main") -> None:
    """The page in the container carries its own slice's UID and amounts, and nothing else."""
    bound = stack.get("egpu", stack.get("egpuc", claim)["status"]["egpuName"])
    page = page_of(stack, pod, container)
    assert page.slice_uid == bound["metadata"]["uid"]
    assert [card.uuid for card in page.cards] == [card["uuid"] for card in bound["spec"]["cards"]]
    assert [(card.memory, card.core) for card in page.cards] == [(memory, core)]


def time_to_running(stack: Stack, pods: Sequence[dict[str, Any]]) -> float:
    """Seconds from creating the pods to the last of them Running."""
    start = time.monotonic()
    stack.create(pods)
    names = {pod["metadata"]["name"] for pod in pods}

    def all_run() -> bool:
        running = {p["metadata"]["name"] for p in stack.list("pods") if p["status"].get("phase") == "Running"}
        return names <= running

    until(f"{len(names)} pods run", all_run, timeout=180, every=0.25)
    return time.monotonic() - start


def test_forty_pods_of_forty_sizes(stack: Stack, nodes: tuple[Node, ...], record_property: Any) -> None:
    assert nodes
    plain = time_to_running(stack, [objects.pod(f"plain-{i}", **ON_NODE) for i in range(COUNT)])
    stack.cluster.kubectl("delete", "pods", "--all", "--wait=true")
    sizes = {i: (1000 + 37 * i) * MIB for i in range(COUNT)}
    stack.create([objects.claim(f"c-{i}", core=1 + i % 4, memory=str(size)) for i, size in sizes.items()])
    sliced = time_to_running(stack, [objects.pod(f"sliced-{i}", {"main": f"c-{i}"}, **ON_NODE) for i in range(COUNT)])
    for i, size in sizes.items():
        assert_own_page(stack, f"sliced-{i}", f"c-{i}", memory=size, core=1 + i % 4)
    record_property("plain_s", round(plain, 2))
    record_property("sliced_s", round(sliced, 2))
    record_property("ratio", round(sliced / plain, 2))
    assert sliced / plain <= MOST_RATIO


def test_forty_pods_with_two_containers_each(stack: Stack, nodes: tuple[Node, ...]) -> None:
    assert nodes
    sizes = {
        (i, side): (500 + 13 * i + 7 * (side == "right")) * MIB for i in range(COUNT) for side in ("left", "right")
    }
    stack.create([objects.claim(f"c-{i}-{side}", core=1, memory=str(size)) for (i, side), size in sizes.items()])
    containers = [objects.container("left"), objects.container("right")]
    pods = [
        objects.pod(f"two-{i}", {side: f"c-{i}-{side}" for side in ("left", "right")}, containers=containers, **ON_NODE)
        for i in range(COUNT)
    ]
    time_to_running(stack, pods)
    for (i, side), size in sizes.items():
        assert_own_page(stack, f"two-{i}", f"c-{i}-{side}", memory=size, core=1, container=side)


def test_an_init_container_has_a_claim_of_its_own(stack: Stack, nodes: tuple[Node, ...]) -> None:
    assert nodes
    first = objects.container("first", command=["/bin/sh", "-c", f"{objects.PROBE} & sleep 1"])
    stack.create([objects.claim("small", core=1, memory="700Mi"), objects.claim("large", core=2, memory="900Mi")])
    pods = [objects.pod("with-init", {"first": "small", "main": "large"}, initContainers=[first], **ON_NODE)]
    time_to_running(stack, pods)
    assert_own_page(stack, "with-init", "small", memory=700 * MIB, core=1, container="first")
    assert_own_page(stack, "with-init", "large", memory=900 * MIB, core=2)


def test_two_containers_of_a_pod_share_one_claim(stack: Stack, nodes: tuple[Node, ...]) -> None:
    assert nodes
    stack.create([objects.claim("both", core=5, memory="1Gi")])
    containers = [objects.container(name, command=[objects.PROBE, "600"]) for name in ("left", "right")]
    time_to_running(stack, [objects.pod("sharing", {"left": "both", "right": "both"}, containers=containers)])
    for name in ("left", "right"):
        assert_own_page(stack, "sharing", "both", memory=1024 * MIB, core=5, container=name)
    results = [stack.logs("sharing", container=name).splitlines()[-2] for name in ("left", "right")]
    assert sorted(line.split()[-1] for line in results) == ["0", "2"]
