"""What a crash can leave, found and put right.

* A booking without its slice (the process ended between the two, or two leaders booked different cards for one claim):
  given back once it is a minute old. Its writer creates the slice within half a minute or stamps the booking anew.
* A slice whose claim or pod went while nobody was looking: its reconciler asks and decides.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Final

from egpu import errors
from egpu.resources import SLICES
from egpu.types import NodeCards, Slice
from egpu_operator.allocator import Allocator
from egpu_operator.world import World

logger = logging.getLogger(__name__)

PERIOD: Final = 30.0
AGE: Final = timedelta(minutes=1)


def orphans(node: NodeCards, slices: Callable[[str], Slice | None], *, before: datetime) -> dict[str, frozenset[str]]:
    """Slices with bookings older than ``before`` that they do not stand on, with the cards they do stand on. Pure."""
    found: dict[str, frozenset[str]] = {}
    for uuid, card in node.spec.bookings.items():
        for name, entry in card.slices.items():
            stands_on = _cards_on(slices(name), node.metadata.name)
            if entry.time < before and uuid not in stands_on:
                found[name] = stands_on
    return found


def _cards_on(own: Slice | None, node: str) -> frozenset[str]:
    return frozenset(share.uuid for share in own.spec.cards) if own and own.spec.node_name == node else frozenset()


class Sweep:
    """Looks everything over at start and every half minute."""

    def __init__(
        self,
        *,
        world: World,
        allocator: Allocator,
        look_at_slice: Callable[[str], None],
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._world = world
        self._allocator = allocator
        self._look_at_slice = look_at_slice
        self._clock = clock

    async def run(self, *, period: float = PERIOD) -> None:
        """Sweeps until cancelled."""
        while True:
            try:
                await self.once()
            except errors.KubeError as error:
                logger.warning("sweep broken off, again in %.0f s: %s", period, error)
            await asyncio.sleep(period)

    async def once(self, *, age: timedelta = AGE) -> None:
        """One sweep."""
        before = self._clock() - age
        for node in list(self._world.node_cards.values()):
            for name in orphans(node, self._world.slices.get, before=before):
                await self._free(node.metadata.name, name, before=before)
        for name in self._in_doubt():
            self._look_at_slice(name)

    async def _free(self, node: str, name: str, *, before: datetime) -> None:
        """Gives an orphan back, if the API server too has no slice for it."""
        raw = await self._world.kube.find(SLICES, name)
        own = self._world.slices.put(raw) if raw else None
        logger.warning("node %s: booking of %s has no slice; giving it back", node, name)
        await self._allocator.release(name, node=node, keep=_cards_on(own, node), before=before)

    def _in_doubt(self) -> Iterable[str]:
        """Slices whose claim or pod the caches do not have."""
        pods = {pod.metadata.uid for pod in self._world.pods.values() if not pod.ended}
        claims = {claim.metadata.uid for claim in self._world.claims.values()}
        for own in list(self._world.slices.values()):
            ref, user = own.spec.claim_ref, own.spec.consumer
            if (ref and ref.uid and ref.uid not in claims) or (user and user.pod_uid not in pods):
                yield own.metadata.name
