"""What is to be done about a slice, and about a class."""

from collections.abc import Callable
from typing import Any

import pytest

from egpu import names
from egpu.types import GPUClass, Phase, Slice
from egpu_operator.classes.decide import Decision as ClassDecision
from egpu_operator.classes.decide import decide as decide_class
from egpu_operator.slices.decide import LOOK_AGAIN, Decision, Observed, decide

BOTH = (names.FINALIZER_AGENT, names.FINALIZER_BOOKING)
MINE = {"namespace": "n", "name": "c", "uid": "u"}


def piece(
    *, finalizers: tuple[str, ...] = BOTH, pod: bool = False, releasing: bool = False, released: str = "",
    deleting: bool = False, ref: dict[str, str] | None = None, reclaim: str = "Delete",
) -> Slice:  # fmt: skip
    meta: dict[str, Any] = {"name": "s", "finalizers": list(finalizers)}
    if deleting:
        meta["deletionTimestamp"] = "2030-01-01T00:00:00Z"
    spec: dict[str, Any] = {
        "nodeName": "a",
        "cards": [{"uuid": "u", "core": 1, "memory": "1Gi"}],
        "reclaimPolicy": reclaim,
    }
    if ref:
        spec["claimRef"] = ref
    if pod:
        spec["consumer"] = {
            "podUID": "p", "podName": "pod", "podNamespace": "n", "containers": ["c"], "releasing": releasing,
        }  # fmt: skip
    return Slice.parse({"metadata": meta, "spec": spec, "status": {"releasedPodUID": released}})


def seen(own: Slice, *, booked: bool = True, **about: bool) -> Observed:
    return Observed(slice=own, booked=booked, **about)


CASES: dict[str, tuple[Observed, Decision]] = {
    "an admin's, new": (seen(piece(finalizers=()), booked=False), Decision(finalizers=BOTH)),
    "an admin's, not booked": (seen(piece(), booked=False), Decision(book=True)),
    "an admin's, booked": (seen(piece()), Decision(phase=Phase.AVAILABLE)),
    "promised": (seen(piece(ref={"namespace": "n", "name": "c"})), Decision(phase=Phase.AVAILABLE)),
    "a claim's": (seen(piece(ref=MINE)), Decision(phase=Phase.BOUND)),
    "its claim gone, Delete": (seen(piece(ref=MINE), claim_gone=True), Decision(delete=True)),
    "its claim gone, Retain": (
        seen(piece(ref=MINE, reclaim="Retain"), claim_gone=True),
        Decision(phase=Phase.RELEASED),
    ),
    "used": (seen(piece(ref=MINE, pod=True)), Decision(phase=Phase.BOUND)),
    "its pod ended": (seen(piece(ref=MINE, pod=True), pod_gone=True), Decision(ask_back=True)),
    "asked back, the agent silent": (
        seen(piece(ref=MINE, pod=True, releasing=True), pod_gone=True),
        Decision(phase=Phase.BOUND, look_again=LOOK_AGAIN),
    ),
    "the agent has confirmed another pod": (
        seen(piece(ref=MINE, pod=True, releasing=True, released="q"), pod_gone=True),
        Decision(phase=Phase.BOUND, look_again=LOOK_AGAIN),
    ),
    "the agent has confirmed": (
        seen(piece(ref=MINE, pod=True, releasing=True, released="p"), pod_gone=True),
        Decision(clear_consumer=True),
    ),
    "confirmed without having been asked": (seen(piece(ref=MINE, pod=True, released="p")), Decision(phase=Phase.BOUND)),
    "pod and node gone": (
        seen(piece(ref=MINE, pod=True), pod_gone=True, node_gone=True),
        Decision(clear_consumer=True),
    ),
    "node gone, the pod still there": (seen(piece(ref=MINE, pod=True), node_gone=True), Decision(phase=Phase.FAILED)),
    "deleted, the agent not done": (seen(piece(deleting=True)), Decision()),
    "deleted, its pod alive": (seen(piece(deleting=True, pod=True)), Decision()),
    "deleted, its pod ended": (seen(piece(deleting=True, pod=True), pod_gone=True), Decision(ask_back=True)),
    "deleted, the agent done": (
        seen(piece(deleting=True, finalizers=(names.FINALIZER_BOOKING,))),
        Decision(free=True, finalizers=()),
    ),
    "deleted, a stranger's finalizer stays": (
        seen(piece(deleting=True, finalizers=("x/y", names.FINALIZER_BOOKING))),
        Decision(free=True, finalizers=("x/y",)),
    ),
    "deleted, the node gone": (
        seen(piece(deleting=True), node_gone=True),
        Decision(finalizers=(names.FINALIZER_BOOKING,)),
    ),
    "deleted, nothing left": (seen(piece(deleting=True, finalizers=())), Decision()),
}


@pytest.mark.parametrize(("observed", "expected"), CASES.values(), ids=CASES)
def test_decide(observed: Observed, expected: Decision) -> None:
    assert decide(observed) == expected


def gpu_class(*, protected: bool, deleting: bool = False) -> GPUClass:
    meta: dict[str, Any] = {"name": "k", "finalizers": [names.FINALIZER_CLASS] if protected else []}
    if deleting:
        meta["deletionTimestamp"] = "2030-01-01T00:00:00Z"
    return GPUClass.parse({"metadata": meta})


Check = Callable[[ClassDecision], bool]
CLASSES: dict[str, tuple[GPUClass, list[str], Check]] = {
    "unused": (gpu_class(protected=False), [], lambda d: d == ClassDecision()),
    "used": (gpu_class(protected=False), ["n/c"], lambda d: d.finalizers == (names.FINALIZER_CLASS,)),
    "used and protected": (gpu_class(protected=True), ["n/c"], lambda d: d == ClassDecision()),
    "deleted while used": (
        gpu_class(protected=True, deleting=True),
        ["n/a", "n/b", "n/c", "n/d", "n/e"],
        lambda d: d.finalizers is None and d.event is not None and "claims n/a, n/b, n/c and 2 more" in d.event.note,
    ),
    "deleted and unused": (gpu_class(protected=True, deleting=True), [], lambda d: d.finalizers == ()),
}


@pytest.mark.parametrize(("held", "claims", "check"), CLASSES.values(), ids=CLASSES)
def test_decide_class(held: GPUClass, claims: list[str], check: Check) -> None:
    assert check(decide_class(held, claims=claims))
