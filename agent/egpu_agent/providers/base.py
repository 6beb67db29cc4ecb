"""The seam between the agent and a vendor's cards."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, runtime_checkable

from egpu.types import Card
from egpu_agent.cdi import Edits


class ProviderError(Exception):
    """The cards cannot be read now; the message says why and what to do. ``reason`` is a constant."""

    def __init__(self, message: str, *, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class FaultKind(StrEnum):
    """What a driver reports of its own accord."""

    XID = "xid"
    DOUBLE_BIT_ECC = "double-bit-ecc"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One report of a driver about a card; ``time`` in seconds since the epoch."""

    uuid: str
    kind: FaultKind
    code: int
    time: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a driver says at one moment: cards that answer, UUIDs of cards that are there and do not, versions."""

    cards: tuple[Card, ...] = ()
    lost: tuple[str, ...] = ()
    driver_version: str = ""
    cuda_version: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CardProcess:
    """A process that holds memory of a card, as the driver sees it: node-wide pid, bytes (0 where unknown)."""

    uuid: str
    pid: int
    memory: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceEdits:
    """What a container needs to reach its cards, and the CDI version these edits want."""

    edits: Edits
    version: str


@runtime_checkable
class Provider(Protocol):
    """A vendor's cards on this node. Every method may block; the agent calls them in threads."""

    @property
    def name(self) -> str:
        """For logs."""

    def read(self) -> Reading:
        """The cards now; raises :class:`ProviderError`."""

    def wait(self, seconds: float) -> tuple[Fault, ...]:
        """Faults as they come, or none after so long; raises :class:`ProviderError` where there is no driver."""

    def processes(self, uuids: Sequence[str]) -> tuple[CardProcess, ...]:
        """Who holds memory of some cards; a lost card has nobody. Raises :class:`ProviderError`."""

    def edits(self, cards: Sequence[Card]) -> DeviceEdits:
        """How a container reaches some cards, from what the driver's files say; raises :class:`ProviderError`."""
