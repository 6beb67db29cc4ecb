"""Faults on demand: what the daemon does to a card, and the client that asks for it."""

from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from gpusim.state import CARDS_DIR, SOCKET_FILE, XIDS, State, text

if TYPE_CHECKING:
    from pathlib import Path

XID_OFF_THE_BUS: Final = 79
XID_DOUBLE_BIT_ECC: Final = 48


class FaultError(RuntimeError):
    """The fault could not be raised."""


class Fault(BaseModel):
    """A fault of one card.

    Attributes:
        card: the card's UUID.
        kind: `lost` falls off the bus (XID 79); `vanish` is gone from the next enumeration on; `xid` raises the XID
            `number`; `ecc` counts `number` uncorrected errors (XID 48); `heal` ends all of it.
        number: the XID, or how many ECC errors.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    card: str
    kind: Literal["lost", "vanish", "xid", "ecc", "heal"]
    number: Annotated[int, Field(ge=1, le=10_000)] = 1


def apply(state: State, directory: Path, fault: Fault) -> None:
    """Do it to the card (the daemon's side).

    Raises:
        FaultError: the node has no such card.
    """
    cards = {text(card.uuid): card for _, card in state.cards}
    if fault.card not in cards:
        raise FaultError(f"no card {fault.card!r} on this node; write one of {', '.join(cards)}")
    card = cards[fault.card]
    node_file = directory / CARDS_DIR / fault.card
    match fault.kind:
        case "lost":
            card.lost = 1
            _raise_xid(card, XID_OFF_THE_BUS)
        case "vanish":
            card.lost = 1
            node_file.unlink(missing_ok=True)
        case "xid":
            _raise_xid(card, fault.number)
        case "ecc":
            card.ecc_uncorrected += fault.number
            card.ecc_seq += 1
            _raise_xid(card, XID_DOUBLE_BIT_ECC)
        case "heal":
            card.lost = 0
            card.ecc_uncorrected = card.ecc_corrected = 0
            node_file.write_text(f"{card.minor}\n")


def _raise_xid(card: Any, number: int) -> None:
    card.xids[card.xid_seq % XIDS] = number
    card.xid_seq += 1


def request(directory: Path, fault: Fault, *, timeout: float = 10.0) -> None:
    """Ask the daemon of a directory for a fault.

    Raises:
        FaultError: no daemon answers, or it refuses.
    """
    message = json.dumps({"op": "fault", "fault": fault.model_dump()}) + "\n"
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(timeout)
            connection.connect(str(directory / SOCKET_FILE))
            connection.sendall(message.encode())
            answer = json.loads(connection.makefile().readline() or "{}")
    except (OSError, ValueError) as error:
        raise FaultError(f"{directory}: no gpusim daemon answers ({error}); start it with `serve`") from error
    if not answer.get("ok"):
        raise FaultError(str(answer.get("error", "no answer")))
