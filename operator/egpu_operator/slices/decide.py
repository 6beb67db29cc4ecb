"""What is to be done about a slice. Pure."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from egpu import conditions, names, reasons
from egpu.types import Condition, Phase, Reclaim, Slice

ACTION: Final = "Reclaiming"
LOOK_AGAIN: Final = 15.0
"""Seconds after which a slice whose pod or agent says nothing is looked at again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """A slice and what it stands on.

    Attributes:
        slice: the slice.
        booked: whether every card of it is booked under its name.
        claim_gone: whether the claim of its claimRef's UID is known not to exist any more.
        pod_gone: whether its consumer has ended or, by UID, does not exist any more.
        node_gone: whether its Node does not exist or is tainted out of service, so that no agent can answer for it.
    """

    slice: Slice
    booked: bool
    claim_gone: bool = False
    pod_gone: bool = False
    node_gone: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Steps, in the order they are taken.

    Attributes:
        finalizers: what the finalizers are to be, or None to leave them.
        book: book its cards.
        ask_back: ask the agent to confirm that nothing of its pod is left.
        clear_consumer: nothing is left of its pod.
        delete: its claim is gone and its policy is Delete.
        free: give the booking back.
        phase: for people.
        look_again: seconds after which to look again.
    """

    finalizers: tuple[str, ...] | None = None
    book: bool = False
    ask_back: bool = False
    clear_consumer: bool = False
    delete: bool = False
    free: bool = False
    phase: Phase | None = None
    look_again: float | None = None


def decide(seen: Observed) -> Decision:
    """The next step for a slice."""
    own = seen.slice
    if own.metadata.deleting:
        return _deleting(seen)
    wanted = (names.FINALIZER_AGENT, names.FINALIZER_BOOKING)
    if missing := [name for name in wanted if name not in own.metadata.finalizers]:
        return Decision(finalizers=(*own.metadata.finalizers, *missing))
    if not seen.booked:
        return Decision(book=True)
    if seen.claim_gone and own.spec.reclaim_policy is Reclaim.DELETE:
        return Decision(delete=True)
    use = _use(seen)
    return use if use.ask_back or use.clear_consumer else _with_phase(use, _phase(seen))


def _deleting(seen: Observed) -> Decision:
    held = seen.slice.metadata.finalizers
    if names.FINALIZER_AGENT in held:
        if seen.node_gone:
            return Decision(finalizers=tuple(name for name in held if name != names.FINALIZER_AGENT))
        return _use(seen)
    if names.FINALIZER_BOOKING in held:
        left = tuple(name for name in held if name != names.FINALIZER_BOOKING)
        return Decision(free=True, finalizers=left)
    return Decision()


def _use(seen: Observed) -> Decision:
    """The consumer's way out: asked back when its pod has ended, cleared when the agent has confirmed it."""
    user = seen.slice.spec.consumer
    if user is None:
        return Decision()
    confirmed = user.releasing and seen.slice.status.released_pod_uid == user.pod_uid
    if confirmed or (seen.pod_gone and seen.node_gone):
        return Decision(clear_consumer=True)
    if seen.pod_gone and not user.releasing:
        return Decision(ask_back=True)
    return Decision(look_again=LOOK_AGAIN if user.releasing else None)


def _with_phase(decision: Decision, phase: Phase) -> Decision:
    return Decision(phase=phase, look_again=decision.look_again)


def _phase(seen: Observed) -> Phase:
    ref = seen.slice.spec.claim_ref
    if seen.node_gone:
        return Phase.FAILED
    if ref is None or not ref.uid:
        return Phase.AVAILABLE
    return Phase.RELEASED if seen.claim_gone else Phase.BOUND


def booked_condition(own: Slice, *, booked: bool, now: datetime) -> tuple[Condition, ...]:
    """The slice's conditions with ``Booked`` set."""
    return conditions.merge(
        own.status.conditions,
        kind=reasons.BOOKED,
        status=booked,
        reason=reasons.SLICE_BOOKED if booked else reasons.SLICE_NO_ROOM,
        message="" if booked else reasons.slice_no_room(own.spec.node_name),
        generation=own.metadata.generation,
        now=now.replace(microsecond=0),
    )
