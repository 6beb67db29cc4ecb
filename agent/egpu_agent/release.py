"""What a slice of this node needs now: nothing, new limits, or to be taken back. Pure."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from egpu import names, reasons
from egpu.types import Card, Slice
from egpu_agent.checkpoint import Ticket
from egpu_agent.processes import Census
from egpu_agent.providers.base import CardProcess

DRIVER_GRACE: Final = 10.0
"""Seconds that memory of processes nobody can name any more holds a release up, once the pod's own are gone."""
SAY_AFTER: Final = 10.0
"""Seconds of waiting after which the condition says for whom."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Going:
    """What is to be taken back.

    Attributes:
        nonces: whose CDI specs go and which never start again.
        pods: UIDs of the pods that must be gone.
        whole: the slice's files go too; else only these pods'.
        released: pod UID to report, or "".
        finalizer: whether the agent's finalizer comes off.
    """

    nonces: tuple[str, ...]
    pods: frozenset[str]
    whole: bool
    released: str = ""
    finalizer: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """A slice's condition Ready."""

    status: bool
    reason: str
    message: str


def going(found: Slice | None, tickets: Sequence[Ticket]) -> Going | None:
    """What of a slice is to be taken back, by what the API server says of it and who was given it.

    Args:
        found: the slice, None when it is gone.
        tickets: all that are attached to its UID.
    """
    holders = {t.nonce: t.attachment.pod_uid for t in tickets if t.attachment is not None}
    consumer = found.spec.consumer if found is not None else None
    pods = frozenset({*holders.values(), *((consumer.pod_uid,) if consumer else ())})
    if found is None:
        return Going(nonces=tuple(holders), pods=pods, whole=True) if holders else None
    released = consumer.pod_uid if consumer else ""
    if found.metadata.deleting:
        finalizer = names.FINALIZER_AGENT in found.metadata.finalizers
        wanted = Going(nonces=tuple(holders), pods=pods, whole=True, released=released, finalizer=finalizer)
        return wanted if finalizer or holders else None
    if consumer is not None and consumer.releasing:
        wanted = Going(nonces=tuple(holders), pods=pods, whole=True, released=released)
        return wanted if holders or found.status.released_pod_uid != released else None
    left = {nonce: pod for nonce, pod in holders.items() if pod != released}
    return Going(nonces=tuple(left), pods=frozenset(left.values()), whole=consumer is None) if left else None


def blockers(census: Census, pods: Collection[str]) -> list[str]:
    """The processes of some pods that are still there, for people."""
    return [f"{process.pid} ({process.name})" for pod in sorted(pods) for process in census.pods.get(pod, ())]


def held_on_cards(listed: Sequence[CardProcess], census: Census, *, seen: Collection[int], waited: float) -> list[str]:
    """Pids whose memory is still on the cards and may be the slice's.

    A process the driver lists and the node does not have is being freed. If it was seen in the pod it holds the
    release; if nobody knows whose it was (the agent was away) it does so for a while.

    Args:
        listed: what the driver lists on the slice's cards.
        census: taken after the list.
        seen: pids known to have been the pods'.
        waited: seconds since the pods' own processes were gone.
    """
    dead = {entry.pid for entry in listed if entry.pid not in census.pids}
    unknown = dead if waited < DRIVER_GRACE else dead & set(seen)
    return [str(pid) for pid in sorted(unknown)]


def health(found: Slice, cards: Mapping[str, Card], *, waiting: str) -> Health:
    """A slice's condition Ready.

    Args:
        found: the slice.
        cards: the node's cards by UUID.
        waiting: for whom its release has been waiting long, or "".
    """
    consumer = found.spec.consumer
    if waiting:
        return Health(status=False, reason=reasons.SLICE_RELEASING, message=waiting)
    for share in found.spec.cards:
        card = cards.get(share.uuid)
        if card is None:
            return Health(status=False, reason=reasons.SLICE_CARD_MISSING, message=reasons.card_gone(share.uuid))
        if not card.healthy:
            return Health(status=False, reason=reasons.SLICE_CARD_UNHEALTHY, message=card.health_reason)
    if consumer is None or consumer.releasing:
        return Health(status=True, reason=reasons.SLICE_USABLE, message=reasons.usable())
    pod = f"{consumer.pod_namespace}/{consumer.pod_name}"
    return Health(status=True, reason=reasons.SLICE_ATTACHED, message=reasons.attached(pod))
