"""The simulated driver's ground truth, by pod."""

from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from gpusim import truth

GPUSIM = "/dev/gpusim"
MIB = 1024**2


class Node(Protocol):
    """A node whose files can be reached from here."""

    @property
    def name(self) -> str:
        """The node's name."""

    def path(self, inside: str) -> Path:
        """The place on this machine of a file of the node."""


def read(node: Node) -> truth.Truth:
    """Everything the node's cards count at this moment."""
    return truth.read(node.path(GPUSIM))


def peak(node: Node, pod_uid: str) -> int:
    """The most bytes that a card can ever have held for a pod: the peaks of all its processes, added up."""
    rows = read(node).in_cgroup(f"pod{pod_uid}")
    cards = {uuid for row in rows for uuid in row.cards}
    return max((sum(row.cards[u].peak for row in rows if u in row.cards) for u in cards), default=0)


def card_truth(node: Node) -> Iterable[str]:
    """Lines for people: what each card holds, and for which process."""
    now = read(node)
    for card in now.cards:
        yield f"{card.name:12} {card.uuid}  {card.used // MIB} of {card.capacity // MIB} MiB in use"
        for row in now.processes:
            usage = row.cards.get(card.uuid)
            if usage and usage.peak:
                amounts = f"{usage.used // MIB} MiB, at most {usage.peak // MIB} MiB ever"
                yield f"  pid {row.pid:<8} {row.comm:16} {amounts}"
