"""The one allocator: it alone decides what is booked of which card, whichever door a claim came through.

It remembers nothing of its own. A decision is made on the cached ElasticGPUNode and written as a JSON patch that tests
the cards' sequences; a lost race means reading the node again and deciding again. Everything is idempotent by the
slice's name: booking what is booked answers with what there is, releasing what is not booked does nothing.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, TypeVar

from egpu import errors, placement, reasons
from egpu.kube import Kube
from egpu.placement import Ask, Misfit, Shares
from egpu.resources import NODE_CARDS
from egpu.types import NodeCards
from egpu_operator import bookings
from egpu_operator.bookings import Entry, Operation
from egpu_operator.world import World

ATTEMPTS: Final = 10

RENEW: Final = timedelta(seconds=30)
"""A booking found from an earlier attempt and older than this is stamped anew, so that no sweep takes it meanwhile."""

R = TypeVar("R")


class NoRoomError(Exception):
    """No room; ``misfits`` says why for each node that was looked at."""

    def __init__(self, misfits: Sequence[Misfit]) -> None:
        super().__init__(placement.nearest(misfits))
        self.misfits = tuple(misfits)


@dataclass(frozen=True, slots=True, kw_only=True)
class Want:
    """A slice to be booked: its name, its claim, and what is asked for."""

    slice_name: str
    claim_uid: str
    ask: Ask


@dataclass(frozen=True, slots=True, kw_only=True)
class Booked:
    """What slices have: all of them by name, and the names of those this very call has booked."""

    shares: dict[str, Shares]
    fresh: frozenset[str]


class Allocator:
    """Books and gives back room on cards.

    Args:
        kube: the API server.
        world: caches to decide on; own writes are put into them at once.
        clock: the time bookings are stamped with.
    """

    def __init__(self, *, kube: Kube, world: World, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._kube = kube
        self._world = world
        self._clock = clock
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def book(self, *, node: str, wants: Sequence[Want]) -> Booked:
        """Books all the wants on one node in one write.

        Raises:
            NoRoomError: they do not all fit; nothing has been booked.
            errors.KubeError: the API server's troubles.
        """

        def decide(cards: NodeCards) -> tuple[Booked, list[Operation]]:
            held = {want.slice_name: bookings.booked(cards, want.slice_name) for want in wants}
            missing = [want for want in wants if not held[want.slice_name]]
            entries = self._choose(cards, missing)
            booked = Booked(
                shares={**held, **{entry.slice_name: entry.shares for entry in entries}},
                fresh=frozenset(entry.slice_name for entry in entries),
            )
            now = self._clock()
            if entries:
                return booked, bookings.add(cards, entries, now=now)
            return booked, bookings.renew(cards, list(held), before=now - RENEW, now=now)

        try:
            return await self._write(node, decide)
        except errors.NotFound as error:
            raise NoRoomError([Misfit(node=node, reason=reasons.NODE_NO_CARDS)]) from error

    async def book_exactly(self, *, node: str, entry: Entry) -> None:
        """Books certain shares of certain cards, for a slice an admin has written down.

        Raises:
            NoRoomError: the cards are not there or have no room.
        """

        def decide(cards: NodeCards) -> tuple[None, list[Operation]]:
            if bookings.booked(cards, entry.slice_name):
                return None, []
            view = self._world.view(node)
            if view is None or not placement.fits_exactly(view, entry.shares):
                raise NoRoomError([])
            return None, bookings.add(cards, [entry], now=self._clock())

        await self._write(node, decide)

    async def release(
        self, slice_name: str, *, node: str, keep: Iterable[str] = (), before: datetime | None = None
    ) -> None:
        """Gives back what a slice has booked on a node.

        Args:
            slice_name: the slice.
            node: the node.
            keep: cards whose bookings stay.
            before: only bookings older than this are given back, judged on the object the patch is tested against.
        """
        kept = frozenset(keep)

        def decide(cards: NodeCards) -> tuple[None, list[Operation]]:
            return None, bookings.remove(cards, slice_name, keep=kept, before=before)

        try:
            await self._write(node, decide)
        except (NoRoomError, errors.NotFound):
            return

    async def _write(self, node: str, decide: Callable[[NodeCards], tuple[R, list[Operation]]]) -> R:
        """Decides and patches until no race is lost; the lock only spares this process races with itself."""
        async with self._locks[node]:
            for attempt in range(ATTEMPTS):
                cards = self._world.node_cards.get(node)
                if cards is None or attempt:
                    cards = self._world.node_cards.put(await self._kube.get(NODE_CARDS, node))
                answer, operations = decide(cards)
                if not operations:
                    return answer
                try:
                    self._world.node_cards.put(await self._kube.patch_json(NODE_CARDS, node, operations))
                except errors.Conflict:
                    continue
                return answer
        raise errors.Retry(f"bookings of node {node} keep changing; trying again")

    def _choose(self, cards: NodeCards, wants: Sequence[Want]) -> list[Entry]:
        name = cards.metadata.name
        view = self._world.view(name)
        asks = [want.ask for want in wants]
        if view is None:
            raise NoRoomError([])
        chosen = placement.place(view, asks)
        if chosen is None:
            raise NoRoomError([placement.explain(view, asks)])
        return [
            Entry(slice_name=want.slice_name, claim_uid=want.claim_uid, shares=shares)
            for want, shares in zip(wants, chosen, strict=True)
        ]
