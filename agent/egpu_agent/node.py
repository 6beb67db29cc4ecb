"""Publishes the node's cards: read every few seconds and on events, written when something changed."""

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from egpu import __version__, errors, names, resources
from egpu.informer import Informer
from egpu.kube import Kube
from egpu.types import Card, NodeCards, NodeCardsStatus
from egpu_agent import cdi, inventory
from egpu_agent.attach import cards_by_uuid
from egpu_agent.providers.base import CardProcess, DeviceEdits, Fault, Provider, ProviderError, Reading
from egpu_agent.settings import Settings

logger = logging.getLogger(__name__)

PERIOD = 5.0
EVENT_WAIT = 1.0
RUNTIME_PERIOD = 300.0
CONTAINERD_CONFIG = Path("etc/containerd/config.toml")
FAULTS_KEPT = 256
LEAVE_LIMIT = 2.0
"""Seconds in which a stopping agent tells the API server so, if it can."""


@dataclass(slots=True, kw_only=True)
class Node:
    """The node's ElasticGPUNode, and what the rest of the agent asks about cards.

    Attributes:
        named: UUIDs of the cards that slices name.
        unregistered: ticket resources that kubelet does not hold.
        library_error: why the library is not installed, or "".
        on_cards: called when the cards changed.
    """

    settings: Settings
    kube: Kube
    providers: Sequence[Provider]
    named: Callable[[], Iterable[str]]
    unregistered: Callable[[], Sequence[str]]
    library_error: Callable[[], str]
    on_cards: Callable[[], None]
    informer: Informer[NodeCards] = field(init=False)
    _held: dict[str, Card] | None = None
    _home: dict[str, Provider] = field(default_factory=dict)
    _faults: deque[Fault] = field(default_factory=lambda: deque(maxlen=FAULTS_KEPT))
    _look: asyncio.Event = field(default_factory=asyncio.Event)
    _runtime: str = ""
    _runtime_read: float = 0.0
    _leaving: bool = False

    def __post_init__(self) -> None:
        """Watches the one object."""
        self.informer = Informer(
            self.kube,
            resources.NODE_CARDS,
            parse=NodeCards.parse,
            on_change=lambda *_: self._look.set(),
            fields=f"metadata.name={self.settings.node}",
        )

    def cards(self) -> Mapping[str, Card] | None:
        """The cards by UUID; None before they were first read."""
        return self._held

    def look(self) -> None:
        """Asks for a reading now."""
        self._look.set()

    def processes(self, uuids: Sequence[str]) -> tuple[CardProcess, ...]:
        """Who holds memory of some cards. Blocks."""
        return tuple(process for provider, own in self._by_provider(uuids) for process in provider.processes(own))

    def edits(self, uuids: Sequence[str]) -> DeviceEdits:
        """How a container reaches some cards. Blocks."""
        found = [
            provider.edits(cards_by_uuid((self._held or {}).values(), own))
            for provider, own in self._by_provider(uuids)
        ]
        version = max((part.version for part in found), key=cdi.ordered, default=names.CDI_VERSION)
        return DeviceEdits(edits=cdi.merge(part.edits for part in found), version=version)

    async def run(self) -> None:
        """Reads and publishes until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for provider in self.providers:
                tasks.create_task(self._listen(provider), name=f"events-{provider.name}")
            tasks.create_task(self._publish_forever(), name="inventory")

    async def leave(self) -> None:
        """Publishes that nobody serves this node until an agent is back."""
        self._leaving = True
        try:
            async with asyncio.timeout(LEAVE_LIMIT):
                await self._once()
        except (errors.KubeError, TimeoutError) as error:
            logger.warning("leaving unannounced: %r", error)

    async def _publish_forever(self) -> None:
        while True:
            self._look.clear()
            try:
                await self._once()
            except errors.KubeError as error:
                logger.warning("ElasticGPUNode %s is not published: %s", self.settings.node, error)
            except Exception:
                logger.exception("the inventory failed")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PERIOD):
                    await self._look.wait()

    async def _once(self) -> None:
        readings, failures = await self._read()
        held = self.informer.get(self.settings.node)
        observed = self._observed(readings, failures, held)
        now = datetime.now(tz=UTC)
        if readings or self.informer.is_synced:
            self._keep(inventory.cards(observed, now=now.timestamp()))
        if not self.informer.is_synced:
            return
        if held is None:
            held = await self._create()
            observed = self._observed(readings, failures, held)
        await self._read_runtime()
        wanted = inventory.status(observed, now=now)
        if wanted == held.status:
            return
        try:
            await self._write(wanted)
        except errors.NotFound:
            await self._create()
            await self._write(wanted)

    async def _read(self) -> tuple[list[Reading], list[tuple[str, str]]]:
        readings: list[Reading] = []
        failures: list[tuple[str, str]] = []
        for provider in self.providers:
            try:
                reading = await asyncio.to_thread(provider.read)
            except ProviderError as error:
                failures.append((error.reason, str(error)))
            except Exception:
                logger.exception("provider %s failed", provider.name)
            else:
                readings.append(reading)
                self._home.update({card.uuid: provider for card in reading.cards})
        return readings, failures

    def _observed(
        self, readings: Sequence[Reading], failures: Sequence[tuple[str, str]], held: NodeCards | None
    ) -> inventory.Observed:
        published = {card.uuid: card for card in held.status.cards} if held else {}
        bookings = held.spec.bookings if held else {}
        booked = (uuid for uuid, card in bookings.items() if card.slices)
        return inventory.Observed(
            readings=readings,
            failures=failures,
            before=tuple({**published, **(self._held or {})}.values()),
            wanted={*self.named(), *booked},
            faults=tuple(self._faults),
            unregistered=self.unregistered(),
            runtime=self._runtime,
            runtime_config=_text(self.settings.host_root / CONTAINERD_CONFIG),
            library_error=self.library_error(),
            leaving=self._leaving,
            version=__version__,
            address=self.settings.address,
            xid_hold=self.settings.xid_hold,
            status=held.status if held else NodeCardsStatus(),
            generation=held.metadata.generation if held else 0,
        )

    def _keep(self, cards: Sequence[Card]) -> None:
        fresh = {card.uuid: card for card in cards}
        if fresh != self._held:
            self._held = fresh
            self.on_cards()

    async def _create(self) -> NodeCards:
        body = {
            "apiVersion": names.API_VERSION,
            "kind": resources.NODE_CARDS.kind,
            "metadata": {"name": self.settings.node},
            "spec": {},
        }
        try:
            return self.informer.put(await self.kube.create(resources.NODE_CARDS, body))
        except errors.AlreadyExists:
            return self.informer.put(await self.kube.get(resources.NODE_CARDS, self.settings.node))

    async def _write(self, status: NodeCardsStatus) -> None:
        answer = await self.kube.apply(
            resources.NODE_CARDS,
            self.settings.node,
            {"status": inventory.wire(status)},
            manager=names.MANAGER_AGENT,
            subresource="status",
        )
        self.informer.put(answer)
        summary = ", ".join(f"{card.uuid} {card.model} {card.health}" for card in status.cards) or "no cards"
        logger.info("published: %s", summary)

    async def _read_runtime(self) -> None:
        """The runtime rarely changes: asked for every few minutes."""
        if self._runtime and time.monotonic() - self._runtime_read < RUNTIME_PERIOD:
            return
        node = await self.kube.find(resources.NODES, self.settings.node)
        info = ((node or {}).get("status") or {}).get("nodeInfo") or {}
        self._runtime = str(info.get("containerRuntimeVersion") or "")
        self._runtime_read = time.monotonic()

    async def _listen(self, provider: Provider) -> None:
        """Faults of one provider; it may fail and be there again later."""
        while True:
            try:
                faults = await asyncio.to_thread(provider.wait, EVENT_WAIT)
            except Exception:
                logger.exception("events of provider %s failed", provider.name)
                await asyncio.sleep(EVENT_WAIT)
                continue
            for fault in faults:
                logger.warning("card %s: %s %d", fault.uuid, fault.kind.value, fault.code)
            if faults:
                self._faults.extend(faults)
                self._look.set()

    def _by_provider(self, uuids: Sequence[str]) -> list[tuple[Provider, list[str]]]:
        first = self.providers[0]
        homes = {provider.name: provider for provider in self.providers}
        split: dict[str, list[str]] = {}
        for uuid in uuids:
            split.setdefault(self._home.get(uuid, first).name, []).append(uuid)
        return [(homes[name], own) for name, own in split.items()]


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
