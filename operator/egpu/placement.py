"""Where a claim fits: free room, reasons, choice of cards, scores. Pure: it knows neither the API server nor a clock.

What a card has left is its status less the sum of its bookings. A slice that sets no compute aside (core 0) fits any
card that still has some; one of a whole card (core 100) wants a card with no other slice.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Final

from egpu import reasons
from egpu.quantity import human_bytes
from egpu.request import Request
from egpu.types import WHOLE_CARD, Card, CardShare, LabelMatch, Match, NodeCards, Selector, Spread

SCORE_MOST: Final = 10
"""The highest score kube-scheduler takes from an extender (MaxExtenderPriority)."""

SEARCH_MOST: Final = 2000
"""Bound on the joint search for several claims; reached only by contrived mixtures."""

NEAREST: Final = 5

ANYWHERE: Final = Selector()

Shares = tuple[CardShare, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What a card has left: percent of compute, bytes, and whether no slice is on it."""

    card: Card
    core: int
    memory: int
    empty: bool

    def takes_core(self, core: int) -> bool:
        """Whether so much compute is left."""
        return self.empty if core == WHOLE_CARD else self.core > 0 and self.core >= core

    def takes(self, share: CardShare) -> bool:
        """Whether the share fits."""
        return self.takes_core(share.core) and self.memory >= share.memory

    def less(self, share: CardShare) -> "Room":
        """What is left once the share is taken."""
        return replace(self, core=self.core - share.core, memory=self.memory - share.memory, empty=False)

    @property
    def load(self) -> float:
        """Booked part of the card, compute and memory together, 0..2."""
        return (WHOLE_CARD - self.core) / WHOLE_CARD + 1 - self.memory / self.card.memory


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """A node as placement sees it."""

    name: str
    ready: bool
    labels: Mapping[str, str]
    rooms: tuple[Room, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One claim's wish: amounts, which cards, and its class's preference among them."""

    request: Request
    selector: Selector = ANYWHERE
    card: Spread = Spread.BINPACK


@dataclass(frozen=True, slots=True, kw_only=True)
class Misfit:
    """Why a node does not fit, with the figure nearest to fitting.

    ``best`` and ``asked`` are bytes or percent, as the reason says; ``nearness`` orders misfits, nearest first.
    """

    node: str
    reason: str
    cards: int = 0
    best: int = 0
    asked: int = 0

    @property
    def figure(self) -> str:
        """For messages: ``node-a: 3 cards, largest free 2.1 GiB of 4 GiB asked``."""
        head = f"{self.node}: {self.cards} card{'' if self.cards == 1 else 's'}"
        if self.reason == reasons.NODE_MEMORY:
            return f"{head}, largest free {human_bytes(self.best)} of {human_bytes(self.asked)} asked"
        if self.reason == reasons.NODE_CORE:
            return f"{head}, largest free {self.best} % of {self.asked} % asked"
        if self.reason == reasons.NODE_COUNT:
            return f"{head}, {self.best} with room of {self.asked} asked"
        return f"{head}, {self.reason}"

    @property
    def nearness(self) -> tuple[int, float, str]:
        """Sort key: reasons that room alone can change come first, then the smallest lack."""
        rank = reasons.NODE_REASONS.index(self.reason)
        return rank, -(self.best / self.asked if self.asked else 0.0), self.node


def view(node: NodeCards, *, labels: Mapping[str, str], ready: bool) -> NodeView:
    """A node's free room: its agent's status less its bookings."""
    return NodeView(
        name=node.metadata.name,
        ready=ready,
        labels=labels,
        rooms=tuple(_room(node, card) for card in node.status.cards),
    )


def _room(node: NodeCards, card: Card) -> Room:
    held = node.spec.bookings.get(card.uuid)
    taken = held.slices.values() if held else ()
    return Room(
        card=card,
        core=WHOLE_CARD - sum(booking.core for booking in taken),
        memory=card.memory - sum(booking.memory for booking in taken),
        empty=not taken,
    )


def place(node: NodeView, asks: Sequence[Ask]) -> tuple[Shares, ...] | None:
    """The cards for every ask at once, in the order of the asks, or None where they do not all fit.

    The hardest ask chooses first, each by its class's card policy; where that leaves no room for another, further
    choices are tried.
    """
    if not asks:
        return ()
    if not node.ready:
        return None
    order = list(range(len(asks)))
    if len(asks) > 1:
        order.sort(key=lambda i: _hardness(node, asks[i]), reverse=True)
    found = _search(dict(enumerate(node.rooms)), [asks[i] for i in order], node.labels, _Budget(SEARCH_MOST))
    if found is None:
        return None
    return tuple(shares for _, shares in sorted(zip(order, found, strict=True)))


def fits(node: NodeView, asks: Sequence[Ask]) -> bool:
    """Whether all the asks fit the node together."""
    return place(node, asks) is not None


def fits_exactly(node: NodeView, shares: Iterable[CardShare]) -> bool:
    """Whether certain cards have room for certain shares; for slices an admin has written down."""
    rooms = {room.card.uuid: room for room in node.rooms}
    return all(share.uuid in rooms and rooms[share.uuid].takes(share) for share in shares)


@dataclass(slots=True)
class _Budget:
    left: int

    def spend(self) -> bool:
        self.left -= 1
        return self.left >= 0


def _search(
    rooms: dict[int, Room], asks: Sequence[Ask], labels: Mapping[str, str], budget: _Budget
) -> list[Shares] | None:
    if not asks:
        return []
    for chosen in _choices(rooms, asks[0], labels):
        if not budget.spend():
            return None
        left = {**rooms, **{index: rooms[index].less(share) for index, share in chosen}}
        rest = _search(left, asks[1:], labels, budget)
        if rest is not None:
            return [tuple(share for _, share in chosen), *rest]
    return None


def _choices(
    rooms: Mapping[int, Room], ask: Ask, labels: Mapping[str, str]
) -> Iterator[tuple[tuple[int, CardShare], ...]]:
    if not labels_match(labels, ask.selector.node_labels):
        return iter(())
    offers = [
        (index, share)
        for index, room in rooms.items()
        if room.card.healthy and card_matches(room.card, ask.selector)
        if (share := ask.request.share_of(room.card)) is not None and room.takes(share)
    ]
    offers.sort(key=lambda offer: _preference(rooms[offer[0]], ask.card))
    return combinations(offers, ask.request.count)


def _preference(room: Room, policy: Spread) -> tuple[float, int, int]:
    """Sort key: the fullest first (and the smallest of equals), or the emptiest."""
    load = round(room.load, 6)
    return (-load if policy is Spread.BINPACK else load, room.card.memory, room.card.index)


def _hardness(node: NodeView, ask: Ask) -> tuple[int, int, float]:
    shares = [share for room in node.rooms if (share := ask.request.share_of(room.card))]
    memory = max((share.memory for share in shares), default=0)
    core = max((share.core for share in shares), default=0)
    most = max((room.card.memory for room in node.rooms), default=1)
    return ask.request.count, int(core == WHOLE_CARD), core / WHOLE_CARD + memory / most


def card_matches(card: Card, selector: Selector) -> bool:
    """Whether a claim's selector allows the card; models are compared without regard to capitals."""
    return _match(card.model, selector.model, fold=True) and _match(card.uuid, selector.uuid)


def _match(value: str, wish: Match, *, fold: bool = False) -> bool:
    if not wish.any_of and not wish.none_of:
        return True
    same = str.casefold if fold else str
    found = same(value)
    return (not wish.any_of or found in map(same, wish.any_of)) and found not in map(same, wish.none_of)


def labels_match(labels: Mapping[str, str], wishes: Iterable[LabelMatch]) -> bool:
    """Whether a node's labels are as wished: one of ``in``; none of ``notIn``, or no such label."""
    return all(
        (not wish.any_of or labels.get(wish.key) in wish.any_of) and labels.get(wish.key) not in wish.none_of
        for wish in wishes
    )


def explain(node: NodeView, asks: Sequence[Ask]) -> Misfit:
    """Why the asks do not fit a node: the first of them that does not fit by itself, else all of them together."""
    if not node.rooms:
        return Misfit(node=node.name, reason=reasons.NODE_NO_CARDS)
    if not node.ready:
        return Misfit(node=node.name, reason=reasons.NODE_NOT_READY, cards=len(node.rooms))
    alone = (misfit for ask in asks if (misfit := _explain_one(node, ask)) is not None)
    return next(alone, Misfit(node=node.name, reason=reasons.NODE_TOGETHER, cards=len(node.rooms)))


def _explain_one(node: NodeView, ask: Ask) -> Misfit | None:
    named = Misfit(node=node.name, reason="", cards=len(node.rooms))
    if not labels_match(node.labels, ask.selector.node_labels):
        return replace(named, reason=reasons.NODE_SELECTOR)
    allowed = [room for room in node.rooms if card_matches(room.card, ask.selector)]
    if not allowed:
        return replace(named, reason=reasons.NODE_SELECTOR)
    healthy = [room for room in allowed if room.card.healthy]
    if not healthy:
        return replace(named, reason=reasons.NODE_UNHEALTHY)
    wanted = [(room, share) for room in healthy if (share := ask.request.share_of(room.card)) is not None]
    if not wanted:
        return replace(named, reason=reasons.NODE_TFLOPS)
    return _explain_amounts(named, wanted, ask.request.count)


def _explain_amounts(named: Misfit, wanted: Sequence[tuple[Room, CardShare]], count: int) -> Misfit | None:
    fitting = sum(room.takes(share) for room, share in wanted)
    if fitting >= count:
        return None
    if fitting or len(wanted) < count:
        return replace(named, reason=reasons.NODE_COUNT, best=fitting, asked=count)
    enough = [(room, share) for room, share in wanted if room.memory >= share.memory]
    if not enough:
        room, share = max(wanted, key=lambda pair: pair[0].memory / max(pair[1].memory, 1))
        return replace(named, reason=reasons.NODE_MEMORY, best=max(room.memory, 0), asked=share.memory)
    room, share = max(enough, key=lambda pair: pair[0].core)
    return replace(named, reason=reasons.NODE_CORE, best=max(room.core, 0), asked=share.core)


def nearest(misfits: Iterable[Misfit], *, most: int = NEAREST) -> str:
    """The figures of the nodes nearest to fitting, and how many more there are."""
    ranked = sorted(misfits, key=lambda misfit: misfit.nearness)
    text = "; ".join(misfit.figure for misfit in ranked[:most])
    more = len(ranked) - most
    return f"{text}; and {more} more" if more > 0 else text


def usage_after(node: NodeView, placed: Iterable[Shares]) -> float:
    """Booked part of a node once the shares are taken, 0..1: compute and memory of its healthy cards, averaged."""
    rooms = [room for room in node.rooms if room.card.healthy]
    if not rooms:
        return 0.0
    extra = [share for shares in placed for share in shares]
    core = sum(WHOLE_CARD - room.core for room in rooms) + sum(share.core for share in extra)
    total = sum(room.card.memory for room in rooms)
    memory = total - sum(room.memory for room in rooms) + sum(share.memory for share in extra)
    return (core / (WHOLE_CARD * len(rooms)) + memory / total) / 2


def scores(usages: Mapping[str, float], policy: Spread) -> dict[str, int]:
    """Scores 0..10 among the nodes that fit: the preferred one alone has 10, however small its lead."""
    if not usages:
        return {}
    sign = 1 if policy is Spread.BINPACK else -1
    worth = {node: sign * round(usage, 9) for node, usage in usages.items()}
    best, worst = max(worth.values()), min(worth.values())
    if best == worst:
        return dict.fromkeys(usages, SCORE_MOST)
    return {
        node: SCORE_MOST if value == best else int((value - worst) / (best - worst) * (SCORE_MOST - 1))
        for node, value in worth.items()
    }


def best_node(nodes: Iterable[NodeView], ask: Ask, policy: Spread) -> str | None:
    """The node to place a claim on when no scheduler chooses: the policy's, the first by name of equals."""
    fitting = {node.name: usage_after(node, placed) for node in nodes if (placed := place(node, [ask])) is not None}
    if not fitting:
        return None
    sign = -1 if policy is Spread.BINPACK else 1
    return min(fitting, key=lambda name: (sign * round(fitting[name], 9), name))
