"""The seam between the agent and what holds a container to its slice."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from egpu.types import CardShare
from egpu_agent.cdi import Edits


class IsolationError(Exception):
    """A slice cannot be prepared; the message says what is missing and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """What a slice allows: percent and bytes of each of its cards."""

    slice_uid: str
    cards: tuple[CardShare, ...]


@runtime_checkable
class Isolation(Protocol):
    """One way to hold containers. Methods may block and can be repeated."""

    @property
    def name(self) -> str:
        """As in a class's ``isolation``."""

    def install(self, *, used: Sequence[str]) -> None:
        """Puts in place what all slices share, and clears away what none of ``used`` (host paths) needs."""

    def prepare(self, grant: Grant) -> Edits:
        """Writes a slice's limits and returns what a container of it gets. Raises :class:`IsolationError`."""

    def update(self, grant: Grant) -> None:
        """Writes changed limits of a slice that is in use; a slice that isn't is passed over."""

    def remove(self, slice_uid: str) -> None:
        """Removes what a slice has on the node."""

    def present(self) -> set[str]:
        """UIDs of the slices that have anything on the node."""
