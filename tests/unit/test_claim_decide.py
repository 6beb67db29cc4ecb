"""What is to be done about a claim."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from egpu import names, reasons
from egpu.types import Claim, ClaimStatus, GPUClass, Phase, Slice
from egpu_operator.claims.decide import Decision, Observed, decide

NOW = datetime(2030, 1, 1, tzinfo=UTC)
UID = "11111111-2222-3333-4444-555555555555"
OWN = names.slice_name(UID)
Check = Callable[[Decision], bool]


def claim(*, status: dict[str, Any] | None = None, deleting: bool = False, **spec: Any) -> Claim:
    meta: dict[str, Any] = {"name": "c", "namespace": "n", "uid": UID, "finalizers": [names.FINALIZER_CLAIM]}
    if deleting:
        meta["deletionTimestamp"] = "2030-01-01T00:00:00Z"
    requests = {"elasticgpu.io/gpu-core": 25, "elasticgpu.io/gpu-memory": "4Gi"}
    whole = {"egpuClassName": "k", "resources": {"requests": requests}, **spec}
    return Claim.parse({"metadata": meta, "spec": whole, "status": status or {}})


def kind(mode: str) -> GPUClass:
    return GPUClass.parse({"metadata": {"name": "k"}, "egpuBindingMode": mode})


def piece(
    *, name: str = OWN, ref: dict[str, str] | None = None, pod: str = "", deleting: bool = False, booked: bool = True,
    memory: str = "4Gi",
) -> Slice:  # fmt: skip
    meta: dict[str, Any] = {"name": name}
    if deleting:
        meta["deletionTimestamp"] = "2030-01-01T00:00:00Z"
    spec: dict[str, Any] = {"nodeName": "node-a", "cards": [{"uuid": "u", "core": 25, "memory": memory}]}
    if ref:
        spec["claimRef"] = ref
    if pod:
        spec["consumer"] = {"podUID": "p", "podName": pod, "podNamespace": "n", "containers": ["c"]}
    condition = {
        "type": "Booked", "status": str(booked), "reason": "x", "message": "",
        "lastTransitionTime": "2030-01-01T00:00:00Z",
    }  # fmt: skip
    return Slice.parse({"metadata": meta, "spec": spec, "status": {"conditions": [condition]}})


MINE = {"namespace": "n", "name": "c", "uid": UID}
PROMISED = {"namespace": "n", "name": "c"}
OTHERS = {"namespace": "n", "name": "other", "uid": "x"}
UNPROTECTED = Claim.parse({"metadata": {"name": "c", "namespace": "n", "uid": UID}, "spec": {}})
BOUND_TO_OWN = {"phase": "Bound", "egpuName": OWN}
FREE = piece(name="free")


def waits(reason: str, *words: str) -> Check:
    def check(decision: Decision) -> bool:
        status = decision.status
        assert status is not None
        [condition] = [c for c in status.conditions if c.type == reasons.BOUND]
        assert all(word in condition.message for word in words), condition.message
        return (status.phase, condition.reason, condition.status) == (Phase.PENDING, reason, "False")

    return check


def told(kind: str, reason: str, *words: str) -> Check:
    def check(decision: Decision) -> bool:
        [condition] = [c for c in (decision.status or ClaimStatus()).conditions if c.type == kind]
        assert all(word in condition.message for word in words), condition.message
        return condition.reason == reason and decision.event is not None

    return check


CASES: dict[str, tuple[Observed, Check]] = {
    "new: finalizer first": (Observed(claim=UNPROTECTED), lambda d: d == Decision(protect=True)),
    "no class: the default, in the same write": (
        Observed(claim=UNPROTECTED, default=kind("Immediate")),
        lambda d: d == Decision(protect=True, fill_class="k"),
    ),
    "no class and no default": (
        Observed(claim=claim(egpuClassName=None)),
        waits(reasons.CLAIM_NO_CLASS, "spec.egpuClassName", "is-default-class"),
    ),
    "unknown class": (Observed(claim=claim()), waits(reasons.CLAIM_CLASS_MISSING, "EGPUClass k", "create it")),
    "a key of another provisioner": (
        Observed(
            claim=claim(resources={"requests": {"other.example/gpu-core": 10}}),
            gpu_class=kind("Immediate"),
        ),
        waits(reasons.CLAIM_BAD_REQUEST, "other.example/gpu-core", "write elasticgpu.io/gpu-core"),
    ),
    "Immediate: placed": (
        Observed(claim=claim(), gpu_class=kind("Immediate")),
        lambda d: d.place is not None and d.place.request.core == 25,
    ),
    "WaitForFirstConsumer: waits, with what would not fit": (
        Observed(claim=claim(), gpu_class=kind("WaitForFirstConsumer"), figures=lambda _: "node-a: 1 card, full"),
        waits(reasons.CLAIM_WAITS_FOR_POD, "first pod", "node-a: 1 card, full"),
    ),
    "its slice is there: bound": (
        Observed(claim=claim(), own=piece(ref=MINE)),
        lambda d: d.status is not None and (d.status.phase, d.status.egpu_name, d.status.node)
        == (Phase.BOUND, OWN, "node-a"),
    ),
    "bound, and the class is gone by now": (
        Observed(claim=claim(status=BOUND_TO_OWN), own=piece(ref=MINE)),
        lambda d: d.status is not None and d.status.phase is Phase.BOUND,
    ),
    "its slice is gone: lost": (
        Observed(claim=claim(status=BOUND_TO_OWN), gpu_class=kind("Immediate")),
        lambda d: d.status is not None and d.status.phase is Phase.LOST and d.place is None,
    ),
    "its slice is going": (
        Observed(claim=claim(status=BOUND_TO_OWN), own=piece(ref=MINE, deleting=True)),
        told(reasons.BOUND, reasons.CLAIM_SLICE_GOING, OWN),
    ),
    "a slice of its name from before is going": (
        Observed(claim=claim(), own=piece(ref=MINE, deleting=True)),
        waits(reasons.CLAIM_SLICE_GOING),
    ),
    "names a slice that is not there": (
        Observed(claim=claim(egpuName="free"), gpu_class=kind("Immediate")),
        waits(reasons.CLAIM_SLICE_MISSING, "ElasticGPU free"),
    ),
    "names a free slice": (
        Observed(claim=claim(egpuName="free"), gpu_class=kind("Immediate"), named=FREE),
        lambda d: d == Decision(adopt=FREE),
    ),
    "names a slice promised to it": (
        Observed(claim=claim(egpuName="free"), gpu_class=kind("Immediate"), named=piece(name="free", ref=PROMISED)),
        lambda d: d.adopt is not None,
    ),
    "names another claim's slice": (
        Observed(claim=claim(egpuName="free"), gpu_class=kind("Immediate"), named=piece(name="free", ref=OTHERS)),
        waits(reasons.CLAIM_SLICE_TAKEN, "n/other"),
    ),
    "names a Released slice of an earlier claim of its own name": (
        Observed(claim=claim(egpuName="free"), gpu_class=kind("Immediate"),
                 named=piece(name="free", ref={**PROMISED, "uid": "earlier"})),
        waits(reasons.CLAIM_SLICE_TAKEN),
    ),
    "names a slice that is less": (
        Observed(claim=claim(egpuName="free"), gpu_class=kind("Immediate"), named=piece(name="free", memory="1Gi")),
        waits(reasons.CLAIM_SLICE_SMALL, "25 % and 4 GiB"),
    ),
    "names a slice not booked yet": (
        Observed(claim=claim(egpuName="free"), gpu_class=kind("Immediate"), named=piece(name="free", booked=False)),
        waits(reasons.CLAIM_SLICE_NOT_READY, "Booked"),
    ),
    "deleted while a pod uses it": (
        Observed(claim=claim(deleting=True, status=BOUND_TO_OWN), own=piece(ref=MINE, pod="train")),
        told(reasons.DELETABLE, reasons.IN_USE, "pod n/train"),
    ),
    "deleted and unused": (
        Observed(claim=claim(deleting=True, status=BOUND_TO_OWN), own=piece(ref=MINE)),
        lambda d: d == Decision(unprotect=True),
    ),
    "deleted before it had anything": (
        Observed(claim=claim(deleting=True)),
        lambda d: d == Decision(unprotect=True),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("seen", "check"), CASES.values(), ids=CASES)
def test_decide(seen: Observed, check: Check) -> None:
    assert check(decide(seen, now=NOW))


@pytest.mark.parametrize("seen", [case for case, _ in CASES.values()], ids=CASES)
def test_what_is_written_needs_no_second_write(seen: Observed) -> None:
    first = decide(seen, now=NOW)
    if first.status is not None:
        again = seen.claim.model_copy(update={"status": first.status})
        assert decide(replace(seen, claim=again), now=NOW.replace(hour=1)).status == first.status
