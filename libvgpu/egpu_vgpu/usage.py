"""The usage region: what each process of a slice says it holds. Tenants can write it, so every word of it is advice.

The region is read with pread, never mapped: a tenant that truncates it must not kill the agent with SIGBUS.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from egpu_vgpu._native import ffi, lib
from egpu_vgpu.limits import MAX_CARDS, text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from egpu_vgpu._native import CData

DEFAULT_SLOTS: int = lib.EGPU_DEFAULT_SLOTS

_PAGE: int = lib.EGPU_PAGE
_F_OFD_GETLK = 36  # linux/fcntl.h; the fcntl module has no name for it
_FLOCK = struct.Struct("hhqqi4x")
_SEQUENCE_MASK = (1 << 48) - 1
_MAX_BYTES = (1 << 63) - 1

REASONS: dict[int, str] = {
    lib.EGPU_REASON_NONE: "",
    lib.EGPU_REASON_LIMITS_MISSING: "the limits page is missing",
    lib.EGPU_REASON_LIMITS_BROKEN: "the limits page is broken",
    lib.EGPU_REASON_USAGE_MISSING: "the usage region is missing or not writable",
    lib.EGPU_REASON_USAGE_BROKEN: "the usage region is broken",
    lib.EGPU_REASON_USAGE_OTHER_SLICE: "the usage region belongs to another slice",
    lib.EGPU_REASON_NO_SLOT: "the usage region has no free slot for another process",
    lib.EGPU_REASON_CARD_NOT_IN_SLICE: "the card is not part of the slice",
    lib.EGPU_REASON_OVER_LIMIT: "the slice's memory limit is reached",
    lib.EGPU_REASON_NO_MEMORY: "the process has no memory left for the books",
    lib.EGPU_REASON_NOT_COVERED: "the call would take device memory that cannot be counted",
}
"""What each refusal reason means, by its number in a slot."""


class UsageError(Exception):
    """A usage region cannot be created or read; the text is one line that says which and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CardUsage:
    """Bytes a process holds on one card, by kind. `charged` is the sum that counts against the limit."""

    uuid: str
    charged: int
    data: int
    context: int
    module: int
    reserved: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessUsage:
    """A live process of the slice, as it describes itself.

    `pid` is the process's own view; `pid_namespace` the inode of its pid namespace; `start_time` clock ticks
    since boot. `reason` says why it was last refused something, empty if never.
    """

    slot: int
    pid: int
    pid_namespace: int
    start_time: int
    name: str
    launches: int
    reason: str
    cards: tuple[CardUsage, ...]


def create(path: Path | str, slice_uid: str, cards: Sequence[str], *, slots: int = DEFAULT_SLOTS) -> None:
    """Create the region of a slice, sparse and writable by every user of the container. An existing one stays.

    Args:
        path: file to create.
        slice_uid: UID of the slice; the library refuses a region of another slice.
        cards: card UUIDs in the order of the limits page.
        slots: most processes at a time.

    Raises:
        UsageError: the arguments cannot be stored, or the file cannot be created, or it belongs to another slice.
    """
    target = Path(path)
    header = _new_header(slice_uid, cards, slots)
    if target.exists():
        _check_owner(target, slice_uid)
        return
    try:
        _create(target, header, slots)
    except OSError as error:
        raise UsageError(f"{path}: cannot create the usage region: {error.strerror}") from error


def read(path: Path | str) -> tuple[ProcessUsage, ...]:
    """The live processes of the slice.

    Raises:
        UsageError: the file cannot be read or its header is not that of a usage region.
    """
    with _Region(Path(path)) as region:
        return tuple(region.processes())


def _new_header(slice_uid: str, cards: Sequence[str], slots: int) -> bytes:
    if not 1 <= slots <= lib.EGPU_MAX_SLOTS:
        raise UsageError(f"{slots} slots: write 1 to {lib.EGPU_MAX_SLOTS}")
    if not 1 <= len(cards) <= MAX_CARDS or not 0 < len(slice_uid.encode()) < lib.EGPU_UID_LEN:
        raise UsageError(f"usage region of slice {slice_uid!r}: 1 to {MAX_CARDS} cards and a short UID are needed")
    header = ffi.new("struct egpu_usage_header *")
    header.magic, header.version = lib.EGPU_USAGE_MAGIC, lib.EGPU_ABI_VERSION
    header.size, header.slot_size = ffi.sizeof("struct egpu_usage_header"), ffi.sizeof("struct egpu_slot")
    header.slot_count, header.card_count, header.slice_uid = slots, len(cards), slice_uid.encode()
    for index, uuid in enumerate(cards):
        header.uuids[index] = uuid.encode()
    return bytes(ffi.buffer(header))


def _create(path: Path, header: bytes, slots: int) -> None:
    handle, name = tempfile.mkstemp(prefix=".usage-", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            os.fchmod(file.fileno(), 0o666)  # the container's user is not known and may change
            file.write(header)
            file.truncate(_PAGE * (1 + slots))
        Path(name).rename(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _check_owner(path: Path, slice_uid: str) -> None:
    with _Region(path) as region:
        if region.slice_uid != slice_uid:
            raise UsageError(f"{path}: the usage region belongs to slice {region.slice_uid!r}, not {slice_uid!r}")


class _Region:
    """An open region; its header is read once and checked."""

    def __init__(self, path: Path) -> None:
        try:
            self._handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError as error:
            raise UsageError(f"{path}: cannot open the usage region: {error.strerror}") from error
        try:
            self._header = self._load("struct egpu_usage_header", 0)
            self._check(path)
        except BaseException:
            os.close(self._handle)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._handle)

    @property
    def slice_uid(self) -> str:
        return text(self._header.slice_uid)

    def processes(self) -> Iterator[ProcessUsage]:
        for index in range(min(self._header.high_water, self._header.slot_count)):
            slot = self._load("struct egpu_slot", _PAGE * (1 + index))
            if slot.state == lib.EGPU_SLOT_USED and self._alive(index):
                yield self._decode(index, slot)

    def _check(self, path: Path) -> None:
        header = self._header
        sizes = (ffi.sizeof("struct egpu_usage_header"), ffi.sizeof("struct egpu_slot"))
        if header.magic != lib.EGPU_USAGE_MAGIC or header.version != lib.EGPU_ABI_VERSION:
            raise UsageError(f"{path}: not a usage region of version {lib.EGPU_ABI_VERSION}")
        if (header.size, header.slot_size) != sizes or header.card_count > MAX_CARDS:
            raise UsageError(f"{path}: the usage region's header is broken")

    def _load(self, type_: str, offset: int) -> CData:
        value = ffi.new(f"{type_} *")
        ffi.memmove(value, os.pread(self._handle, _PAGE, offset).ljust(_PAGE, b"\0"), _PAGE)
        return value

    def _alive(self, index: int) -> bool:
        query = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, _PAGE * (1 + index), _PAGE, 0)
        try:
            answer = fcntl.fcntl(self._handle, _F_OFD_GETLK, query)
        except OSError as error:
            if error.errno in {errno.EINVAL, errno.ENOLCK}:
                return False
            raise
        return bool(_FLOCK.unpack(answer)[0] != fcntl.F_UNLCK)

    def _decode(self, index: int, slot: CData) -> ProcessUsage:
        return ProcessUsage(
            slot=index,
            pid=slot.pid,
            pid_namespace=slot.pid_namespace,
            start_time=slot.start_time,
            name=text(slot.comm),
            launches=slot.launches,
            reason=REASONS.get(slot.reason, f"reason {slot.reason}"),
            cards=tuple(self._card(index, slot, card) for card in range(self._header.card_count)),
        )

    def _card(self, index: int, slot: CData, card: int) -> CardUsage:
        kinds = [min(value, _MAX_BYTES) for value in slot.kinds[card]]
        return CardUsage(
            uuid=text(self._header.uuids[card]),
            charged=_held(self._header.cards[card].op, index, slot.accounts[card]),
            data=kinds[lib.EGPU_KIND_DATA],
            context=kinds[lib.EGPU_KIND_CONTEXT],
            module=kinds[lib.EGPU_KIND_MODULE],
            reserved=kinds[lib.EGPU_KIND_RESERVED],
        )


def _held(op: int, index: int, account: CData) -> int:
    charge = account.charges[account.sequence & 1]
    done = account.applied >= account.sequence or op == (index << 48 | account.sequence & _SEQUENCE_MASK)
    return min(int(charge.after if done else charge.before), _MAX_BYTES)
