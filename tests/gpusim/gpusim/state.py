"""The shared state as Python sees it: the C header is the only description of the layout."""

from __future__ import annotations

import errno
import mmap
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import cffi  # type: ignore[import-untyped]

if TYPE_CHECKING:
    from collections.abc import Iterator

HEADER: Final = Path(__file__).resolve().parent.parent / "src" / "gpusim_state.h"
STATE_FILE: Final = "state"
SOCKET_FILE: Final = "ctl.sock"
CARDS_DIR: Final = "cards"
HISTORY_FILE: Final = "history.jsonl"

_LIBC: Final = """
int pthread_mutexattr_init(void *);
int pthread_mutexattr_setpshared(void *, int);
int pthread_mutexattr_setrobust(void *, int);
int pthread_mutex_init(void *, void *);
int pthread_mutex_lock(void *);
int pthread_mutex_unlock(void *);
int pthread_mutex_consistent(void *);
long syscall(long, ...);
"""
_SYS_FUTEX: Final = 202
_FUTEX_WAKE: Final = 1


def _declarations() -> str:
    text = re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.DOTALL)
    return re.sub(r"^#(ifndef|endif|include|define GPUSIM_STATE_H).*$", "", text, flags=re.MULTILINE)


_ffi = cffi.FFI()
_ffi.cdef(_declarations())
_ffi.cdef(_LIBC)
_libc: Any = _ffi.dlopen(None)
_constants: Any = _ffi.dlopen(None)
MAGIC: Final[int] = _constants.GPUSIM_MAGIC
LAYOUT: Final[int] = _constants.GPUSIM_LAYOUT
MAX_SLOTS: Final[int] = _constants.GPUSIM_MAX_SLOTS
XIDS: Final[int] = _constants.GPUSIM_XIDS
SAMPLES: Final[int] = _constants.GPUSIM_SAMPLES
SIZE: Final[int] = _ffi.sizeof("struct gpusim_state")


class StateError(RuntimeError):
    """There is no usable state in the directory."""


class State:
    """A mapped state file. `root` has the fields of `struct gpusim_state`."""

    def __init__(self, path: Path, *, create: bool = False) -> None:
        mode = "w+b" if create else "r+b"
        try:
            with path.open(mode) as file:
                if create:
                    file.truncate(SIZE)
                self._map = mmap.mmap(file.fileno(), SIZE)
        except (OSError, ValueError) as error:
            raise StateError(f"{path}: {error}; is `python -m gpusim serve` running for this directory?") from error
        self.root: Any = _ffi.cast("struct gpusim_state *", _ffi.from_buffer(self._map))
        if not create and (self.root.magic != MAGIC or self.root.layout != LAYOUT):
            raise StateError(f"{path}: written by another version of gpusim; start the daemon again")

    @property
    def cards(self) -> Iterator[tuple[int, Any]]:
        """Index and struct of each card, in bus order."""
        return ((i, self.root.cards[i]) for i in range(self.root.card_count))

    @property
    def live_slots(self) -> Iterator[tuple[int, Any]]:
        """Index and struct of each slot that belongs to a process."""
        return ((i, self.root.slots[i]) for i in range(self.root.slots_high) if self.root.slots[i].live)

    def card_used(self, card: int) -> int:
        """Bytes in use on a card: the sum over the live slots."""
        return sum(total(slot.card[card]) for _, slot in self.live_slots)

    def init_locks(self) -> None:
        """Make every card's lock; once, before the magic is written."""
        attributes = _ffi.new("char[64]")
        _libc.pthread_mutexattr_init(attributes)
        _libc.pthread_mutexattr_setpshared(attributes, 1)
        _libc.pthread_mutexattr_setrobust(attributes, 1)
        for _, card in self.cards:
            _libc.pthread_mutex_init(card.lock, attributes)

    def lock(self, card: int) -> None:
        """Take a card's lock; counts up the card again when its last owner died with it."""
        struct = self.root.cards[card]
        if _libc.pthread_mutex_lock(struct.lock) == errno.EOWNERDEAD:
            _libc.pthread_mutex_consistent(struct.lock)
            struct.used = self.card_used(card)

    def unlock(self, card: int) -> None:
        """Give a card's lock back."""
        _libc.pthread_mutex_unlock(self.root.cards[card].lock)

    def raise_event(self) -> None:
        """Wake everybody who waits in nvmlEventSetWait."""
        self.root.events = (self.root.events + 1) & 0xFFFFFFFF
        address = _ffi.addressof(self.root, "events")
        _libc.syscall(_SYS_FUTEX, address, _ffi.cast("int", _FUTEX_WAKE), _ffi.cast("int", 0x7FFFFFFF))


def total(usage: Any) -> int:
    """Bytes that one process holds on one card."""
    return int(usage.context + usage.module + usage.data)


def text(field: Any) -> str:
    """A char array as a string."""
    return bytes(_ffi.string(field)).decode(errors="replace")
