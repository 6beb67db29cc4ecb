"""Every example does what its README says."""

import re

import pytest

from egpu_testing import truth
from egpu_testing.stack import ROOT, Stack
from egpu_testing.waiting import until
from localcluster.cluster import Node

pytestmark = pytest.mark.e2e

GIB = 1024**3
CLAIMED = {"quarter": 4 * GIB, "half": 6 * GIB}


def test_every_example_is_tested() -> None:
    folders = {folder.name for folder in (ROOT / "examples").iterdir() if folder.is_dir()}
    assert folders == {"01-two-pods-one-card", "02-elastic-gpu-spelling"}


def _said(stack: Stack, pod: str) -> dict[str, str]:
    until(f"{pod} has spoken", lambda: "as much again" in stack.logs(pod), timeout=30)
    lines = (re.split(r" {2,}", line, maxsplit=1) for line in stack.logs(pod).splitlines())
    return {parts[0]: parts[-1] for parts in lines}


def test_two_pods_share_one_card_and_each_is_held_to_its_claim(stack: Stack, nodes: tuple[Node, ...]) -> None:
    stack.apply(ROOT / "examples/01-two-pods-one-card")
    stack.running(*CLAIMED)
    for pod, memory in CLAIMED.items():
        said = _said(stack, pod)
        assert said["total memory"] == f"{memory // 1024**2} MiB"
        assert said["half of it"] == "CUDA_SUCCESS"
        assert "vector addition done" in said
        assert said["as much again"] == "CUDA_ERROR_OUT_OF_MEMORY"
    slices = {item["spec"]["claimRef"]["name"]: item for item in stack.list("egpu")}
    assert len({item["spec"]["cards"][0]["uuid"] for item in slices.values()}) == 1
    _assert_never_passed(stack, nodes)


def _assert_never_passed(stack: Stack, nodes: tuple[Node, ...]) -> None:
    for pod, memory in CLAIMED.items():
        found = stack.get("pod", pod)
        node = next(node for node in nodes if node.name == found["spec"]["nodeName"])
        assert 0 < truth.peak(node, found["metadata"]["uid"]) <= memory


def test_the_spelling_of_elastic_gpu_applies_and_runs(stack: Stack) -> None:
    manifest = ROOT / "examples/02-elastic-gpu-spelling/all.yaml"
    stack.apply(manifest)
    for number in (1, 2):
        until(
            f"claim {number} is Bound before its pod runs or with it",
            lambda n=number: stack.get("egpuc", f"gpushare-egpuc-{n}").get("status", {}).get("phase") == "Bound",
            timeout=30,
        )
    stack.running("test-cuda-1", "test-cuda-2")
    for pod in ("test-cuda-1", "test-cuda-2"):
        assert _said(stack, pod)["total memory"] == "4096 MiB"
    assert len({item["spec"]["cards"][0]["uuid"] for item in stack.list("egpu")}) == 1
    stack.cluster.kubectl("delete", "-f", str(manifest), "--timeout=60s")
    assert {item["status"]["phase"] for item in stack.list("egpu")} == {"Released"}
