"""Ground truth: what every process really holds and held, whatever a library says."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from gpusim.daemon import Usage, usage_row
from gpusim.state import HISTORY_FILE, STATE_FILE, State, text


@dataclass(frozen=True, slots=True, kw_only=True)
class CardTruth:
    """One card. `used` is the sum over live processes, `capacity` what processes can have at most; bytes."""

    uuid: str
    name: str
    used: int
    capacity: int
    total: int
    lost: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessTruth:
    """One process, alive or ended.

    Attributes:
        pid: node-wide.
        cgroup: path of its cgroup when it called cuInit.
        end_ns: CLOCK_REALTIME of its end; None while it lives.
        cards: by card UUID; for an ended process `used` is what its death gave back.
    """

    pid: int
    comm: str
    cgroup: str
    start_ns: int
    end_ns: int | None
    cards: dict[str, Usage]

    @property
    def alive(self) -> bool:
        """Whether the driver still holds something for it."""
        return self.end_ns is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """Everything at one moment. Ended processes are oldest first."""

    cards: tuple[CardTruth, ...]
    processes: tuple[ProcessTruth, ...]
    ended: tuple[ProcessTruth, ...]

    def card(self, uuid: str) -> CardTruth:
        """The card of that UUID; KeyError when the node has none."""
        found = {card.uuid: card for card in self.cards}
        return found[uuid]

    def process(self, pid: int) -> ProcessTruth | None:
        """The latest process of that node-wide pid, alive ones first."""
        rows = [row for row in (*self.ended, *self.processes) if row.pid == pid]
        return rows[-1] if rows else None

    def in_cgroup(self, part: str) -> tuple[ProcessTruth, ...]:
        """All processes, ended or alive, whose cgroup path contains `part` (a pod's UID, a container's id)."""
        return tuple(row for row in (*self.ended, *self.processes) if part in row.cgroup)


def read(directory: Path | str) -> Truth:
    """Read a node directory. Needs no daemon, only its files.

    Raises:
        gpusim.state.StateError: there is no state.
    """
    folder = Path(directory)
    state = State(folder / STATE_FILE)
    cards = tuple(
        CardTruth(
            uuid=text(card.uuid),
            name=text(card.name),
            used=state.card_used(i),
            capacity=card.memory,
            total=card.memory + card.reserved,
            lost=bool(card.lost),
        )
        for i, card in state.cards
    )
    return Truth(cards=cards, processes=tuple(_live(state)), ended=_ended(folder / HISTORY_FILE))


def _live(state: State) -> list[ProcessTruth]:
    return [
        ProcessTruth(
            pid=slot.pid,
            comm=text(slot.comm),
            cgroup=text(slot.cgroup),
            start_ns=slot.start_ns,
            end_ns=None,
            cards={text(card.uuid): Usage(**usage_row(slot.card[i])) for i, card in state.cards if slot.card[i].peak},
        )
        for _, slot in state.live_slots
    ]


def _ended(path: Path) -> tuple[ProcessTruth, ...]:
    if not path.exists():
        return ()
    rows = (json.loads(line) for line in path.read_text().splitlines())
    return tuple(
        ProcessTruth(**{**row, "cards": {uuid: Usage(**usage) for uuid, usage in row["cards"].items()}}) for row in rows
    )
