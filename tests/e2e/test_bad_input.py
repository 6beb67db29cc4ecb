"""Bad input: a message that says what to do, nothing lost, no other pod touched."""

from typing import Any

import pytest

from egpu_testing import objects
from egpu_testing.stack import Stack
from egpu_testing.waiting import until
from localcluster.errors import ClusterError

pytestmark = pytest.mark.e2e

CORE = "elasticgpu.io/gpu-core"
TWO = [objects.container("left"), objects.container("right")]

REFUSED_AT_APPLY: dict[str, tuple[dict[str, Any], str]] = {
    "malformed quantity": (objects.claim("c", core=10, memory="4GiB"), "write 4Gi"),
    "memory in bare small numbers": (objects.claim("c", core=10, memory=4), "write 4Gi"),
    "0 % core": (objects.claim("c", core=0), "write 1 to 100"),
    "150 % core": (objects.claim("c", core=150), "write 1 to 100"),
    "container that does not exist": (objects.pod("p", {"main": "c"}, containers=TWO), "left, right"),
    "claim of another namespace": (objects.pod("p", {"main": "other/c"}), "namespace"),
    "hand-written ticket": (
        objects.pod("p", containers=[objects.container() | {"resources": {"limits": {"elasticgpu.io/slice": "1"}}}]),
        "annotation",
    ),
    "node chosen by hand": (objects.pod("p", {"main": "c"}, nodeName="node-a"), "nodeName"),
}


@pytest.mark.parametrize(("body", "words"), REFUSED_AT_APPLY.values(), ids=REFUSED_AT_APPLY)
def test_what_one_object_decides_is_refused_at_apply(stack: Stack, body: dict[str, Any], words: str) -> None:
    with pytest.raises(ClusterError, match=words):
        stack.apply(body)


def _bound_message(stack: Stack, name: str) -> str:
    conditions = stack.get("egpuc", name).get("status", {}).get("conditions", ())
    return " ".join(c["message"] for c in conditions if c["type"] == "Bound" and c["status"] != "True")


UNMET: dict[str, tuple[dict[str, Any], str]] = {
    "unknown class": (objects.claim("c", gpu_class="nowhere", core=10), "nowhere"),
    "more memory than any card has": (objects.claim("c", gpu_class="immediate", core=10, memory="900Gi"), "900 GiB"),
}


@pytest.mark.parametrize(("body", "words"), UNMET.values(), ids=UNMET)
def test_what_the_cluster_decides_is_a_condition_and_an_event(stack: Stack, body: dict[str, Any], words: str) -> None:
    stack.apply(body)
    until("the condition says why", lambda: words in _bound_message(stack, "c"), timeout=20)
    until("an event says why", lambda: words in stack.events("c"), timeout=20)


def test_a_pod_of_an_unknown_claim_waits_and_starts_when_the_claim_comes(stack: Stack) -> None:
    stack.apply(objects.pod("early", {"main": "late"}))
    until("the pod's event names the claim", lambda: "late" in stack.events("early"), timeout=20)
    stack.apply(objects.claim("late", core=10, memory="1Gi"))
    stack.running("early", timeout=20)


def test_a_claim_whose_class_comes_later_binds_then(stack: Stack) -> None:
    stack.apply(objects.claim("c", gpu_class="later", core=10, memory="1Gi"))
    until("it waits for the class", lambda: "later" in _bound_message(stack, "c"), timeout=20)
    stack.apply(objects.gpu_class("later", egpuBindingMode="Immediate"))
    until("it is Bound", lambda: stack.get("egpuc", "c")["status"]["phase"] == "Bound", timeout=20)


def test_a_claim_in_use_is_not_given_to_a_second_pod(stack: Stack) -> None:
    stack.apply(objects.claim("c", core=10, memory="1Gi"), objects.pod("first", {"main": "c"}))
    stack.running("first")
    stack.apply(objects.pod("second", {"main": "c"}))
    until("its event names the first", lambda: "default/first" in stack.events("second"), timeout=20)
    assert stack.get("pod", "first")["status"]["phase"] == "Running"
    stack.delete("pod", "first")
    stack.running("second", timeout=30)


def test_a_claim_deleted_while_bound_waits_for_its_pod(stack: Stack) -> None:
    stack.apply(objects.claim("c", core=10, memory="1Gi"), objects.pod("user", {"main": "c"}))
    stack.running("user")
    stack.delete("egpuc", "c", wait=False)
    until("it says that it waits", lambda: "default/user" in str(stack.get("egpuc", "c")["status"]), timeout=20)
    assert stack.get("pod", "user")["status"]["phase"] == "Running"
    stack.delete("pod", "user")
    stack.gone("egpuc", "c")


def test_a_class_deleted_while_used_waits_for_its_claims(stack: Stack) -> None:
    stack.apply(objects.gpu_class("mine", egpuBindingMode="Immediate"), objects.claim("c", gpu_class="mine", core=10))
    until("it is Bound", lambda: stack.get("egpuc", "c").get("status", {}).get("phase") == "Bound", timeout=20)
    stack.delete("egpuclass", "mine", wait=False)
    until("an event names the claim", lambda: "default/c" in stack.events("mine"), timeout=20)
    assert stack.get("egpuclass", "mine")["metadata"]["deletionTimestamp"]
    stack.delete("egpuc", "c")
    stack.gone("egpuclass", "mine")
