"""What is to be done about a claim. Pure.

A claim is bound by its slice: the ElasticGPU whose ``claimRef`` carries its UID. Status only tells.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from egpu import conditions, names, reasons
from egpu.events import Event, normal, warning
from egpu.placement import Ask
from egpu.quantity import human_bytes
from egpu.types import BindingMode, CardShare, Claim, ClaimStatus, Condition, GPUClass, Phase, Slice
from egpu_operator.provision import ask_of

ACTION_BIND: Final = "Binding"
ACTION_DELETE: Final = "Deleting"


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """A claim and what it touches; what does not exist is None.

    Attributes:
        claim: the claim.
        gpu_class: the class it names.
        default: the default class, for a claim that names none.
        own: the slice whose claimRef carries the claim's UID.
        named: the slice ``spec.egpuName`` names, or one an admin has promised to a claim of this name.
        figures: of the nodes nearest to fitting, if none fits now; asked for only when it is told.
    """

    claim: Claim
    gpu_class: GPUClass | None = None
    default: GPUClass | None = None
    own: Slice | None = None
    named: Slice | None = None
    figures: Callable[[Ask], str] = lambda _ask: ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """One step; after a write to the claim's metadata or spec, or to a slice, the claim is looked at again.

    Attributes:
        protect: add the finalizer.
        fill_class: the class to write into ``spec.egpuClassName``.
        unprotect: remove the finalizer.
        place: find room now for this ask.
        adopt: the free slice to take.
        status: what the status is to be.
        event: what to say if the status changes.
    """

    protect: bool = False
    fill_class: str | None = None
    unprotect: bool = False
    place: Ask | None = None
    adopt: Slice | None = None
    status: ClaimStatus | None = None
    event: Event | None = None


def decide(seen: Observed, *, now: datetime) -> Decision:
    """The next step for a claim."""
    claim = seen.claim
    if claim.metadata.deleting:
        return _deleting(seen, now=now)
    protect = names.FINALIZER_CLAIM not in claim.metadata.finalizers
    fill = seen.default.metadata.name if seen.default and not claim.spec.egpu_class_name else None
    if protect or fill:
        return Decision(protect=protect, fill_class=fill)
    if seen.own is not None:
        return _with_slice(seen, seen.own, now=now)
    if claim.status.egpu_name:
        return lost(claim, now=now)
    return _unbound(seen, now=now)


def _deleting(seen: Observed, *, now: datetime) -> Decision:
    claim = seen.claim
    if names.FINALIZER_CLAIM not in claim.metadata.finalizers:
        return Decision()
    user = seen.own.spec.consumer if seen.own else None
    if user is None:
        return Decision(unprotect=True)
    message = reasons.deletion_waits(f"{user.pod_namespace}/{user.pod_name}")
    status = _with_condition(
        claim, kind=reasons.DELETABLE, status=False, reason=reasons.IN_USE, message=message, now=now
    )
    return Decision(status=status, event=warning(reason=reasons.IN_USE, action=ACTION_DELETE, note=message))


def _with_slice(seen: Observed, own: Slice, *, now: datetime) -> Decision:
    claim, name = seen.claim, own.metadata.name
    if not own.metadata.deleting:
        return bound(claim, own, now=now)
    message = reasons.slice_going(name)
    if claim.status.egpu_name == name:
        status = _with_condition(
            claim, kind=reasons.BOUND, status=True, reason=reasons.CLAIM_SLICE_GOING, message=message, now=now
        )
        return Decision(
            status=status, event=warning(reason=reasons.CLAIM_SLICE_GOING, action=ACTION_BIND, note=message)
        )
    return pending(claim, reason=reasons.CLAIM_SLICE_GOING, message=message, now=now, quiet=True)


def _unbound(seen: Observed, *, now: datetime) -> Decision:
    claim, gpu_class = seen.claim, seen.gpu_class
    if not claim.spec.egpu_class_name:
        return pending(claim, reason=reasons.CLAIM_NO_CLASS, message=reasons.no_class(claim.metadata.key), now=now)
    if gpu_class is None:
        message = reasons.class_missing(claim.spec.egpu_class_name)
        return pending(claim, reason=reasons.CLAIM_CLASS_MISSING, message=message, now=now)
    try:
        ask = ask_of(claim, gpu_class)
    except ValueError as error:
        return pending(claim, reason=reasons.CLAIM_BAD_REQUEST, message=str(error), now=now)
    if seen.named is not None or claim.spec.egpu_name:
        return _prebound(seen, ask, now=now)
    if gpu_class.binding_mode is BindingMode.IMMEDIATE:
        return Decision(place=ask)
    message = reasons.waits_for_pod(seen.figures(ask))
    return pending(claim, reason=reasons.CLAIM_WAITS_FOR_POD, message=message, now=now, quiet=True)


def _prebound(seen: Observed, ask: Ask, *, now: datetime) -> Decision:
    claim, named = seen.claim, seen.named
    if named is None:
        name = claim.spec.egpu_name or ""
        return pending(claim, reason=reasons.CLAIM_SLICE_MISSING, message=reasons.slice_missing(name), now=now)
    name, ref = named.metadata.name, named.spec.claim_ref
    if ref is not None and (ref.uid or f"{ref.namespace}/{ref.name}" != claim.metadata.key):
        owner = f"{ref.namespace}/{ref.name}"
        return pending(claim, reason=reasons.CLAIM_SLICE_TAKEN, message=reasons.slice_taken(name, owner), now=now)
    if not conditions.holds(named.status.conditions, reasons.BOOKED) or named.metadata.deleting:
        message = reasons.slice_not_available(name)
        return pending(claim, reason=reasons.CLAIM_SLICE_NOT_READY, message=message, now=now)
    if not serves(named.spec.cards, ask):
        return pending(claim, reason=reasons.CLAIM_SLICE_SMALL, message=reasons.slice_small(name, wanted(ask)), now=now)
    return Decision(adopt=named)


def serves(cards: tuple[CardShare, ...], ask: Ask) -> bool:
    """Whether a ready slice has what is asked for; amounts by percent or TFLOPS are taken as met."""
    request = ask.request
    enough = all(card.core >= request.core and card.memory >= (request.memory or 0) for card in cards)
    selected = not ask.selector.uuid.any_of or all(card.uuid in ask.selector.uuid.any_of for card in cards)
    return len(cards) == request.count and enough and selected


def wanted(ask: Ask) -> str:
    """What is asked for, for messages: ``2 cards of 25 % and 4 GiB each``."""
    request = ask.request
    parts = [f"{request.core} %"] if request.core else []
    parts += [human_bytes(request.memory)] if request.memory else []
    cards = "1 card" if request.count == 1 else f"{request.count} cards"
    return f"{cards} of {' and '.join(parts) or 'any size'}" + (" each" if request.count > 1 else "")


def bound(claim: Claim, own: Slice, *, now: datetime) -> Decision:
    """The claim is its slice's."""
    message = reasons.bound(own.metadata.name, own.spec.node_name)
    status = ClaimStatus(
        phase=Phase.BOUND,
        egpu_name=own.metadata.name,
        node=own.spec.node_name,
        cards=own.spec.cards,
        observed_generation=claim.metadata.generation,
        conditions=_merged(
            claim, kind=reasons.BOUND, status=True, reason=reasons.CLAIM_BOUND, message=message, now=now
        ),
    )
    return Decision(status=status, event=normal(reason=reasons.CLAIM_BOUND, action=ACTION_BIND, note=message))


def lost(claim: Claim, *, now: datetime) -> Decision:
    """The claim's slice is gone."""
    message = reasons.lost(claim.status.egpu_name or "")
    status = _with_condition(
        claim, kind=reasons.BOUND, status=False, reason=reasons.CLAIM_LOST, message=message, now=now
    )
    return Decision(
        status=status.model_copy(update={"phase": Phase.LOST}),
        event=warning(reason=reasons.CLAIM_LOST, action=ACTION_BIND, note=message),
    )


def no_room(claim: Claim, message: str, *, now: datetime) -> Decision:
    """No node has room for it."""
    return pending(claim, reason=reasons.CLAIM_NO_ROOM, message=message, now=now)


def pending(claim: Claim, *, reason: str, message: str, now: datetime, quiet: bool = False) -> Decision:
    """The claim waits; ``quiet`` where that is nothing to be told as an event."""
    status = ClaimStatus(
        phase=Phase.PENDING,
        observed_generation=claim.metadata.generation,
        conditions=_merged(claim, kind=reasons.BOUND, status=False, reason=reason, message=message, now=now),
    )
    return Decision(status=status, event=None if quiet else warning(reason=reason, action=ACTION_BIND, note=message))


def _with_condition(claim: Claim, *, kind: str, status: bool, reason: str, message: str, now: datetime) -> ClaimStatus:
    merged = _merged(claim, kind=kind, status=status, reason=reason, message=message, now=now)
    return claim.status.model_copy(update={"conditions": merged, "observed_generation": claim.metadata.generation})


def _merged(
    claim: Claim, *, kind: str, status: bool, reason: str, message: str, now: datetime
) -> tuple[Condition, ...]:
    return conditions.merge(
        claim.status.conditions,
        kind=kind,
        status=status,
        reason=reason,
        message=message,
        generation=claim.metadata.generation,
        now=now.replace(microsecond=0),
    )
