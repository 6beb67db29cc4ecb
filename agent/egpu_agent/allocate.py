"""Who is starting, and with which slice: decided from what kubelet, the API server and the checkpoint say. Pure."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from egpu import names, reasons
from egpu.types import Slice
from egpu_agent.checkpoint import Attachment, Ticket
from egpu_agent.kubelet import Entry


class Refused(Exception):
    """A container must not start; the message goes to the pod's event."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """A container about to start, and the nonce that its CDI device carries."""

    pod_uid: str
    container: str
    resource: str
    ids: tuple[str, ...]
    nonce: str


def cdi_name(nonce: str) -> str:
    """The CDI device that Allocate answers with."""
    return f"{names.CDI_KIND}={nonce}"


def starts(entries: Sequence[Entry], *, ids: Collection[str]) -> tuple[Start, ...]:
    """The containers that a PreStartContainer for these ids can mean.

    Several ordinary init containers of a pod get the same ids one after the other, and the call does not say which of
    them starts. They share one claim, so each of them is made ready.

    Args:
        entries: kubelet's entries for exactly these ids.
        ids: for the message.

    Raises:
        Refused: nobody holds the ids, several pods do, or kubelet keeps no answer of ours.
    """
    shown = ", ".join(sorted(ids))
    if not entries:
        raise Refused(reasons.start_unknown_ids(shown))
    if len({entry.pod_uid for entry in entries}) > 1:
        raise Refused(reasons.start_ambiguous(shown))
    return tuple(_start(entry) for entry in entries)


def starts_from_memory(tickets: Iterable[Ticket], *, resource: str, ids: Collection[str]) -> tuple[Start, ...]:
    """As :func:`starts` where kubelet's checkpoint cannot be read: restarts of containers that were started before."""
    wanted = tuple(sorted(ids))
    held = [ticket for ticket in tickets if ticket.resource == resource and ticket.ids == wanted]
    newest = max(held, key=lambda ticket: ticket.time, default=None)
    if newest is None or newest.attachment is None:
        raise Refused(reasons.start_unknown_ids(", ".join(wanted)))
    attachment = newest.attachment
    return (
        Start(
            pod_uid=attachment.pod_uid,
            container=attachment.container,
            resource=resource,
            ids=wanted,
            nonce=newest.nonce,
        ),
    )


def slice_for(start: Start, slices: Iterable[Slice], *, node: str) -> Slice | None:
    """The slice whose consumer is exactly this container; None where there is none (yet).

    Raises:
        Refused: there is one, and it is being taken back.
    """
    for candidate in slices:
        consumer = candidate.spec.consumer
        if consumer is None or consumer.pod_uid != start.pod_uid or candidate.spec.node_name != node:
            continue
        if start.container not in consumer.containers:
            continue
        if consumer.releasing or candidate.metadata.deleting:
            raise Refused(reasons.start_releasing(candidate.metadata.name))
        return candidate
    return None


def known(start: Start, tickets: Mapping[str, Ticket]) -> Attachment | None:
    """What the nonce of a start already stands for: the container starts again.

    Raises:
        Refused: the slice was taken back since.
    """
    ticket = tickets.get(start.nonce)
    if ticket is None or ticket.attachment is None:
        return None
    if ticket.attachment.revoked:
        raise Refused(reasons.start_releasing(ticket.attachment.slice_name))
    return ticket.attachment


def attach(start: Start, found: Slice) -> Attachment:
    """The attachment of a start to its slice."""
    consumer = found.spec.consumer
    if consumer is None:
        raise Refused(reasons.start_releasing(found.metadata.name))
    return Attachment(
        slice_name=found.metadata.name,
        slice_uid=found.metadata.uid,
        pod_uid=start.pod_uid,
        pod_namespace=consumer.pod_namespace,
        pod_name=consumer.pod_name,
        container=start.container,
        isolation=found.spec.isolation,
        cards=found.spec.cards,
    )


def ticket(start: Start, attachment: Attachment, *, now: float) -> Ticket:
    """The ticket that remembers an attachment."""
    return Ticket(nonce=start.nonce, resource=start.resource, ids=start.ids, time=now, attachment=attachment)


def rebuilt(entries: Iterable[Entry], attachments: Mapping[str, Attachment]) -> dict[str, Ticket]:
    """Tickets as kubelet's checkpoint and the notes in our CDI specs tell them, when our own memory is lost."""
    return {
        entry.nonce: Ticket(
            nonce=entry.nonce,
            resource=entry.resource,
            ids=tuple(sorted(entry.ids)),
            attachment=_matching(entry, attachments.get(entry.nonce)),
        )
        for entry in entries
        if entry.nonce
    }


def forgotten(tickets: Iterable[Ticket], entries: Iterable[Entry], *, now: float, age: float) -> list[str]:
    """Nonces that were answered, that kubelet has not kept, and that never came to stand for a slice."""
    kept = {entry.nonce for entry in entries}
    return [t.nonce for t in tickets if t.attachment is None and t.nonce not in kept and now - t.time > age]


def _start(entry: Entry) -> Start:
    if entry.nonce is None:
        raise Refused(reasons.start_foreign_answer(entry.container))
    return Start(
        pod_uid=entry.pod_uid,
        container=entry.container,
        resource=entry.resource,
        ids=tuple(sorted(entry.ids)),
        nonce=entry.nonce,
    )


def _matching(entry: Entry, attachment: Attachment | None) -> Attachment | None:
    """A note in a spec counts only for the container that kubelet gave the nonce to."""
    if attachment is None or (attachment.pod_uid, attachment.container) != (entry.pod_uid, entry.container):
        return None
    return attachment
