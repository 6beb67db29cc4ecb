"""The shared state as Python sees it: the C header is the only description of the layout."""

from __future__ import annotations

import contextlib
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

_NODE_LIBRARY: Final = """
void gpusim_lock(struct gpusim_state *, uint32_t card, uint32_t dead_slot);
void gpusim_unlock(struct gpusim_state *, uint32_t card);
void gpusim_wake(struct gpusim_state *);
"""


def _declarations() -> str:
    text = re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.DOTALL)
    return re.sub(r"^#(ifndef|endif|include|define GPUSIM_STATE_H).*$", "", text, flags=re.MULTILINE)


_ffi = cffi.FFI()
_ffi.cdef(_declarations())
_ffi.cdef(_NODE_LIBRARY)
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


class Keeper:
    """What only the daemon does to a state, through the compiled helper."""

    def __init__(self, state: State, library: Path) -> None:
        self._state = state
        self._library: Any = _ffi.dlopen(str(library))

    @contextlib.contextmanager
    def locked(self, card: int, *, dead_slot: int) -> Iterator[None]:
        """Hold a card's lock, also when the process of `dead_slot` died with it."""
        self._library.gpusim_lock(self._state.root, card, dead_slot)
        try:
            yield
        finally:
            self._library.gpusim_unlock(self._state.root, card)

    def wake(self) -> None:
        """Wake everybody who waits in nvmlEventSetWait."""
        self._library.gpusim_wake(self._state.root)


def total(usage: Any) -> int:
    """Bytes that one process holds on one card."""
    return int(usage.context + usage.module + usage.data)


def text(field: Any) -> str:
    """A char array as a string."""
    return bytes(_ffi.string(field)).decode(errors="replace")
