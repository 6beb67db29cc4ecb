"""Bookings as JSON patches. Pure.

Every patch tests the sequence of each card it touches, so that two writers who saw the same room cannot both have it;
a card's first booking tests the object's ``resourceVersion`` instead, there being no sequence yet.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from egpu.conditions import timestamp
from egpu.quantity import format_bytes
from egpu.types import CardShare, NodeCards

Operation = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One slice's booking of its cards."""

    slice_name: str
    claim_uid: str
    shares: tuple[CardShare, ...]


def booked(node: NodeCards, slice_name: str) -> tuple[CardShare, ...]:
    """What a slice has booked of a node's cards."""
    return tuple(
        CardShare(uuid=uuid, core=entry.core, memory=entry.memory)
        for uuid, card in node.spec.bookings.items()
        if (entry := card.slices.get(slice_name)) is not None
    )


def add(node: NodeCards, entries: Sequence[Entry], *, now: datetime) -> list[Operation]:
    """The patch that books all the entries, or none of them if any card has changed since ``node`` was read."""
    by_card: dict[str, dict[str, Operation]] = {}
    for entry in entries:
        for share in entry.shares:
            by_card.setdefault(share.uuid, {})[entry.slice_name] = _value(entry, share, now)
    tests, writes = _frame(node, by_card)
    writes.extend(_step(node, [uuid for uuid in by_card if uuid in node.spec.bookings]))
    for uuid, values in by_card.items():
        if uuid in node.spec.bookings:
            writes.extend(_op("add", _path(uuid, name), value) for name, value in values.items())
        else:
            writes.append(_op("add", f"/spec/bookings/{_escape(uuid)}", {"sequence": 1, "slices": values}))
    added = [share for entry in entries for share in entry.shares]
    return [*tests, *writes, _summary(node, added=added, names=+len(entries), removed=())]


def remove(
    node: NodeCards, slice_name: str, *, keep: frozenset[str] = frozenset(), before: datetime | None = None
) -> list[Operation]:
    """The patch that gives back what a slice has booked; empty if there is nothing.

    Args:
        node: the node as read; the patch holds for this state of the cards alone.
        slice_name: the slice.
        keep: cards whose bookings stay.
        before: bookings from this time on stay.
    """
    kept = keep | {uuid for uuid, _ in _booked_since(node, slice_name, before)}
    shares = [share for share in booked(node, slice_name) if share.uuid not in kept]
    if not shares:
        return []
    writes = [{"op": "remove", "path": _path(share.uuid, slice_name)} for share in shares]
    return [
        *_step(node, [share.uuid for share in shares]),
        *writes,
        _summary(node, added=(), removed=shares, names=0 if kept else -1),
    ]


def renew(node: NodeCards, slice_names: Iterable[str], *, before: datetime, now: datetime) -> list[Operation]:
    """The patch that stamps anew the slices' bookings older than ``before``; empty if there are none."""
    old = [
        (uuid, name)
        for uuid, card in node.spec.bookings.items()
        for name in slice_names
        if name in card.slices and card.slices[name].time < before
    ]
    stamps = [_op("replace", f"{_path(uuid, name)}/time", timestamp(now)) for uuid, name in old]
    return [*_step(node, dict.fromkeys(uuid for uuid, _ in old)), *stamps]


def _booked_since(node: NodeCards, slice_name: str, moment: datetime | None) -> Iterator[tuple[str, datetime]]:
    for uuid, card in node.spec.bookings.items():
        entry = card.slices.get(slice_name)
        if entry is not None and moment is not None and entry.time >= moment:
            yield uuid, entry.time


def _step(node: NodeCards, uuids: Iterable[str]) -> list[Operation]:
    """Tests and counts on the sequences of cards that have one."""
    tests, writes = [], []
    for uuid in uuids:
        path, sequence = f"/spec/bookings/{_escape(uuid)}/sequence", node.spec.bookings[uuid].sequence
        tests.append(_op("test", path, sequence))
        writes.append(_op("replace", path, sequence + 1))
    return [*tests, *writes]


def _path(uuid: str, slice_name: str) -> str:
    return f"/spec/bookings/{_escape(uuid)}/slices/{_escape(slice_name)}"


def _frame(node: NodeCards, by_card: Mapping[str, object]) -> tuple[list[Operation], list[Operation]]:
    """Makes the maps a first booking needs, and tests that nobody else has made them meanwhile."""
    if all(uuid in node.spec.bookings for uuid in by_card):
        return [], []
    tests = [_op("test", "/metadata/resourceVersion", node.metadata.resource_version)]
    if node.spec.bookings:
        return tests, []
    return tests, [_op("add", "/spec", {"bookings": {}})]


def _value(entry: Entry, share: CardShare, now: datetime) -> Operation:
    value = {"core": share.core, "memory": format_bytes(share.memory), "time": timestamp(now)}
    return {**value, "claimUID": entry.claim_uid} if entry.claim_uid else value


def _summary(node: NodeCards, *, added: Iterable[CardShare], removed: Iterable[CardShare], names: int) -> Operation:
    held = [booking for card in node.spec.bookings.values() for booking in card.slices.values()]
    core = sum(b.core for b in held) + sum(s.core for s in added) - sum(s.core for s in removed)
    memory = sum(b.memory for b in held) + sum(s.memory for s in added) - sum(s.memory for s in removed)
    count = len({name for card in node.spec.bookings.values() for name in card.slices}) + names
    return _op("add", "/spec/booked", {"core": core, "memory": format_bytes(memory), "slices": count})


def _op(kind: str, path: str, value: object) -> Operation:
    return {"op": kind, "path": path, "value": value}


def _escape(part: str) -> str:
    """A key as JSON pointer (RFC 6901)."""
    return part.replace("~", "~0").replace("/", "~1")
