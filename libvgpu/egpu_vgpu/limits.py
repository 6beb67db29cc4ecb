"""The limits page: what a slice may use. Written by the agent, mapped read-only by the library.

The file is never truncated and never renamed once it exists: the first kills a reader with SIGBUS, the second leaves a
container's bind mount on the old file. A writer overwrites the older of the two copies, so one that dies midway leaves
the other copy in force.
"""

from __future__ import annotations

import os
import re
import tempfile
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING

from egpu_vgpu._native import ffi, lib

if TYPE_CHECKING:
    from egpu_vgpu._native import CData

UNLIMITED: int = lib.EGPU_MEMORY_UNLIMITED
"""Memory limit of a card that has none; 0 allows nothing."""
SIZE: int = lib.EGPU_PAGE * lib.EGPU_COPIES
MAX_CARDS: int = lib.EGPU_MAX_CARDS

_UUID = re.compile(r"(GPU|MIG)-[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


class LimitsError(Exception):
    """A limits page cannot be read or written; the text is one line that says which and why."""


class Sharing(IntEnum):
    """How the card's device time is shared by its slices."""

    TIME_SLICE = lib.EGPU_SHARING_TIME_SLICE
    MPS = lib.EGPU_SHARING_MPS
    MIG = lib.EGPU_SHARING_MIG


class Burst(IntEnum):
    """Whether a slice may use device time that its neighbours leave idle."""

    HARD = lib.EGPU_BURST_HARD
    ALLOWED = lib.EGPU_BURST_ALLOWED


@dataclass(frozen=True, slots=True, kw_only=True)
class CardLimit:
    """Limit on one card: its UUID (`GPU-...` or `MIG-...`), memory in bytes, core in percent of device time.

    `context` is the number of bytes that one context is known to take on this card; 0 lets the library measure.
    """

    uuid: str
    memory: int
    core: int = 100
    sharing: Sharing = Sharing.TIME_SLICE
    context: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsPage:
    """Everything a limits page says. `generation` is given by `write`; a page read from a file carries its own."""

    slice_uid: str
    cards: tuple[CardLimit, ...]
    burst: Burst = Burst.HARD
    generation: int = 0


def read(path: Path | str) -> LimitsPage:
    """Read the copy in force.

    Raises:
        LimitsError: the file cannot be read, or neither copy is valid.
    """
    raw = _read_bytes(Path(path))
    found = _newest(raw)
    if found is None:
        raise LimitsError(f"{path}: neither copy of the limits page is valid: {_defect(_copy(raw, 0))}")
    return _decode(_copy(raw, found))


def write(path: Path | str, page: LimitsPage) -> LimitsPage:
    """Put `page` in force and return it with its generation. A page that already says the same is left alone.

    Raises:
        LimitsError: the page is not one that can be written, or the file cannot be.
    """
    _validate(page)
    target = Path(path)
    try:
        return _update(target, page) if target.exists() else _create(target, page)
    except OSError as error:
        raise LimitsError(f"{path}: cannot write the limits page: {error.strerror}") from error


def _create(path: Path, page: LimitsPage) -> LimitsPage:
    first = _with_generation(page, 1)
    handle, name = tempfile.mkstemp(prefix=".limits-", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            os.fchmod(file.fileno(), 0o644)
            file.write(_encode(first) + bytes(lib.EGPU_PAGE))
            file.flush()
            os.fsync(file.fileno())
        Path(name).rename(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return first


def _update(path: Path, page: LimitsPage) -> LimitsPage:
    raw = _read_bytes(path)
    newest = _newest(raw)
    current = _decode(_copy(raw, newest)) if newest is not None else None
    if current is not None and _with_generation(page, current.generation) == current:
        return current
    fresh = _with_generation(page, (current.generation if current else _highest_generation(raw)) + 1)
    handle = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        if os.fstat(handle).st_size < SIZE:
            os.ftruncate(handle, SIZE)  # grows a page that was cut short; never shrinks one
        os.pwrite(handle, _encode(fresh), 0 if newest is None else (1 - newest) * lib.EGPU_PAGE)
    finally:
        os.close(handle)
    return fresh


def _read_bytes(path: Path) -> bytes:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise LimitsError(f"{path}: cannot open the limits page: {error.strerror}") from error
    try:
        return os.pread(handle, SIZE, 0).ljust(SIZE, b"\0")
    finally:
        os.close(handle)


def _copy(raw: bytes, index: int) -> CData:
    copy = ffi.new("struct egpu_limits_copy *")
    ffi.memmove(copy, raw[index * lib.EGPU_PAGE :], lib.EGPU_PAGE)
    return copy


def _newest(raw: bytes) -> int | None:
    valid = [index for index in range(lib.EGPU_COPIES) if _defect(_copy(raw, index)) is None]
    return max(valid, key=lambda index: int(_copy(raw, index).generation), default=None)


def _highest_generation(raw: bytes) -> int:
    """Of pages that are not valid: believed only as far as a sane next generation can be made from it."""
    return max(int(_copy(raw, index).generation) & 0xFFFFFFFF for index in range(lib.EGPU_COPIES))


def _defect(copy: CData) -> str | None:
    if copy.magic != lib.EGPU_LIMITS_MAGIC:
        return f"magic is {copy.magic:#x}, not {lib.EGPU_LIMITS_MAGIC:#x}"
    if copy.version != lib.EGPU_ABI_VERSION:
        return f"version is {copy.version}, not {lib.EGPU_ABI_VERSION}"
    if copy.size != ffi.sizeof(copy[0]):
        return f"size is {copy.size}, not {ffi.sizeof(copy[0])}"
    if copy.checksum != lib.egpu_checksum(copy, ffi.offsetof("struct egpu_limits_copy", "checksum")):
        return "checksum does not match"
    if copy.generation == 0 or copy.card_count > MAX_CARDS:
        return f"generation {copy.generation} or card count {copy.card_count} is out of range"
    return None


def _decode(copy: CData) -> LimitsPage:
    cards = tuple(
        CardLimit(
            uuid=text(card.uuid),
            memory=card.memory,
            core=card.core,
            sharing=Sharing(card.sharing),
            context=card.context,
        )
        for card in copy.cards[0 : copy.card_count]
    )
    return LimitsPage(slice_uid=text(copy.slice_uid), cards=cards, burst=Burst(copy.burst), generation=copy.generation)


def _encode(page: LimitsPage) -> bytes:
    copy = ffi.new("struct egpu_limits_copy *")
    copy.magic, copy.version, copy.size = lib.EGPU_LIMITS_MAGIC, lib.EGPU_ABI_VERSION, ffi.sizeof(copy[0])
    copy.card_count, copy.generation, copy.burst = len(page.cards), page.generation, page.burst
    copy.slice_uid = page.slice_uid.encode()
    for slot, card in zip(copy.cards, page.cards, strict=False):
        slot.uuid, slot.memory, slot.core = card.uuid.encode(), card.memory, card.core
        slot.sharing, slot.context = card.sharing, card.context
    copy.checksum = lib.egpu_checksum(copy, ffi.offsetof("struct egpu_limits_copy", "checksum"))
    return bytes(ffi.buffer(copy))


def text(field: CData) -> str:
    """A fixed-width character field as text: up to the first zero, whatever a tenant may have put there."""
    return bytes(ffi.buffer(field)).split(b"\0", 1)[0].decode("ascii", "replace")


def _with_generation(page: LimitsPage, generation: int) -> LimitsPage:
    return LimitsPage(slice_uid=page.slice_uid, cards=page.cards, burst=page.burst, generation=generation)


def _validate(page: LimitsPage) -> None:
    problem = _page_problem(page) or next(filter(None, map(_card_problem, page.cards)), None)
    if problem:
        raise LimitsError(f"limits page of slice {page.slice_uid!r}: {problem}")


def _page_problem(page: LimitsPage) -> str | None:
    if not page.slice_uid or len(page.slice_uid.encode()) >= lib.EGPU_UID_LEN:
        return f"the slice UID must have 1 to {lib.EGPU_UID_LEN - 1} bytes"
    if not 1 <= len(page.cards) <= MAX_CARDS:
        return f"{len(page.cards)} cards: write 1 to {MAX_CARDS}"
    if len({card.uuid.lower() for card in page.cards}) != len(page.cards):
        return "a card is named twice"
    return None


def _card_problem(card: CardLimit) -> str | None:
    if not _UUID.fullmatch(card.uuid):
        return f"card UUID {card.uuid!r} is not of the form GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx (or MIG-...)"
    if not 0 <= card.memory <= UNLIMITED or not 0 <= card.context <= UNLIMITED:
        return f"card {card.uuid}: memory and context must be bytes from 0 to 2^64-1"
    if not 1 <= card.core <= 100:
        return f"card {card.uuid}: core {card.core} must be a percentage from 1 to 100"
    return None
