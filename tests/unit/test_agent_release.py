"""What is taken back, when, and what it waits for."""

from typing import Any

import pytest

from egpu import names
from egpu.types import Card, CardShare, Isolation, Slice
from egpu_agent import release
from egpu_agent.checkpoint import Attachment, Ticket
from egpu_agent.processes import Census, Process
from egpu_agent.providers.base import CardProcess
from egpu_agent.release import Going

POD, OLD = "11111111-0000-4000-8000-000000000001", "22222222-0000-4000-8000-000000000002"
AGENT = (names.FINALIZER_AGENT, names.FINALIZER_BOOKING)


def _slice(
    *,
    pod: str | None = POD,
    releasing: bool = False,
    deleting: bool = False,
    finalizers: tuple[str, ...] = AGENT,
    reported: str = "",
) -> Slice:
    meta: dict[str, Any] = {"name": "egpu-1", "uid": "u1", "finalizers": list(finalizers)}
    if deleting:
        meta["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    spec: dict[str, Any] = {"nodeName": "here", "cards": [{"uuid": "GPU-1", "core": 25, "memory": "1Gi"}]}
    if pod:
        spec["consumer"] = {
            "podUID": pod,
            "podName": "trainer",
            "podNamespace": "default",
            "containers": ["main"],
            "releasing": releasing,
        }
    return Slice.parse({"metadata": meta, "spec": spec, "status": {"releasedPodUID": reported}})


def _ticket(nonce: str = "n1", pod: str = POD) -> Ticket:
    attachment = Attachment(
        sliceUID="u1",
        podUID=pod,
        slice_name="egpu-1",
        pod_namespace="default",
        pod_name="trainer",
        container="main",
        isolation=Isolation.LIBVGPU,
        cards=(CardShare(uuid="GPU-1", core=25, memory=1 << 30),),
    )
    return Ticket(nonce=nonce, resource=names.TICKET, ids=("slice-1",), attachment=attachment)


def _going(*nonces: str, pods: tuple[str, ...] = (POD,), whole: bool = True, **rest: Any) -> Going:
    return Going(nonces=nonces, pods=frozenset(pods), whole=whole, **rest)


@pytest.mark.parametrize(
    ("found", "tickets", "expected"),
    [
        pytest.param(_slice(), [_ticket()], None, id="in-use"),
        pytest.param(_slice(), [], None, id="bound-not-started"),
        pytest.param(_slice(pod=None), [], None, id="free"),
        pytest.param(_slice(releasing=True), [_ticket()], _going("n1", released=POD), id="pod-ended"),
        pytest.param(_slice(releasing=True), [], _going(released=POD), id="pod-ended-before-it-started"),
        pytest.param(_slice(releasing=True, reported=POD), [], None, id="reported-already"),
        pytest.param(
            _slice(releasing=True, reported=POD), [_ticket()], _going("n1", released=POD), id="reported-yet-attached"
        ),
        pytest.param(_slice(releasing=True, reported=OLD), [], _going(released=POD), id="another-was-reported"),
        pytest.param(
            _slice(deleting=True), [_ticket()], _going("n1", released=POD, finalizer=True), id="deleted-in-use"
        ),
        pytest.param(_slice(deleting=True, pod=None), [], _going(pods=(), finalizer=True), id="deleted-free"),
        pytest.param(_slice(deleting=True, pod=None, finalizers=()), [], None, id="deleted-and-let-go"),
        pytest.param(
            _slice(deleting=True, pod=None, finalizers=()), [_ticket()], _going("n1"), id="let-go-by-somebody-else"
        ),
        pytest.param(None, [_ticket()], _going("n1"), id="gone"),
        pytest.param(None, [], None, id="gone-and-clean"),
        pytest.param(_slice(pod=None), [_ticket()], _going("n1"), id="consumer-cleared-without-us"),
        pytest.param(
            _slice(),
            [_ticket(), _ticket("n0", OLD)],
            _going("n0", pods=(OLD,), whole=False),
            id="next-consumer-is-there",
        ),
        pytest.param(
            _slice(releasing=True),
            [_ticket(), _ticket("n0", OLD)],
            _going("n1", "n0", pods=(POD, OLD), released=POD),
            id="both-go",
        ),
    ],
)
def test_what_is_taken_back(found: Slice | None, tickets: list[Ticket], expected: Going | None) -> None:
    assert release.going(found, tickets) == expected


CENSUS = Census(
    pods={POD: (Process(pid=10, name="pause"), Process(pid=11, name="python3"))}, pids=frozenset((1, 10, 11, 50))
)


def test_every_process_of_its_pods_blocks() -> None:
    assert release.blockers(CENSUS, [POD]) == ["10 (pause)", "11 (python3)"]
    assert release.blockers(CENSUS, [OLD]) == []


@pytest.mark.parametrize(
    ("pids", "seen", "waited", "held"),
    [
        pytest.param((50,), (), 0, [], id="somebody-else's"),
        pytest.param((99,), (99,), 0, ["99"], id="dead-and-known"),
        pytest.param((99,), (99,), 1000, ["99"], id="dead-and-known-holds-on"),
        pytest.param((99,), (), 1, ["99"], id="dead-and-unknown"),
        pytest.param((99,), (), 11, [], id="dead-and-unknown-for-long"),
        pytest.param((), (99,), 0, [], id="freed"),
    ],
)
def test_memory_that_the_driver_still_frees(
    pids: tuple[int, ...], seen: tuple[int, ...], waited: float, held: list[str]
) -> None:
    listed = [CardProcess(uuid="GPU-1", pid=pid, memory=1) for pid in pids]
    assert release.held_on_cards(listed, CENSUS, seen=seen, waited=waited) == held


HEALTHY = Card(uuid="GPU-1", model="T4", memory=1)
SICK = HEALTHY.model_copy(update={"health": "Unhealthy", "health_reason": "XID 79"})


@pytest.mark.parametrize(
    ("found", "cards", "waiting", "status", "reason"),
    [
        pytest.param(_slice(), [HEALTHY], "", True, "Attached", id="in-use"),
        pytest.param(_slice(pod=None), [HEALTHY], "", True, "Usable", id="free"),
        pytest.param(_slice(), [SICK], "", False, "CardUnhealthy", id="sick"),
        pytest.param(_slice(), [], "", False, "CardMissing", id="gone"),
        pytest.param(_slice(releasing=True), [SICK], "for 12 (x)", False, "Releasing", id="waiting"),
    ],
)
def test_condition(
    found: Slice,
    cards: list[Card],
    waiting: str,
    status: bool,  # noqa: FBT001
    reason: str,
) -> None:
    health = release.health(found, {card.uuid: card for card in cards}, waiting=waiting)
    assert (health.status, health.reason) == (status, reason)
