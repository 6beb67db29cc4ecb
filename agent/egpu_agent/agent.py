"""Puts the agent together and runs it."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Mapping, Sequence

from egpu import names
from egpu.kube import Kube
from egpu.workqueue import WorkQueue
from egpu_agent import allocate, attach, cdi, discovery, kubelet
from egpu_agent.checkpoint import Store, Ticket
from egpu_agent.crash import Steps, no_steps
from egpu_agent.isolation.base import Isolation, IsolationError
from egpu_agent.keeper import Keeper
from egpu_agent.node import Node
from egpu_agent.plugin import Plugin
from egpu_agent.probes import Probes
from egpu_agent.processes import Counter
from egpu_agent.providers.base import Provider
from egpu_agent.settings import Settings
from egpu_agent.slices import NodeSlices

logger = logging.getLogger(__name__)

SWEEP_PERIOD = 60.0


class Agent:
    """The agent of one node. It serves kubelet from its checkpoint while the API server is away."""

    def __init__(
        self,
        settings: Settings,
        kube: Kube,
        *,
        steps: Steps = no_steps,
        providers: Sequence[Provider] | None = None,
        isolations: Mapping[str, Isolation] | None = None,
    ) -> None:
        self.settings = settings
        self._library_error = ""
        self._specs = cdi.SpecFiles(settings.cdi_dir)
        self._store = Store(path=settings.checkpoint)
        self._isolations = isolations or discovery.isolations(settings, steps=steps)
        self._queue = WorkQueue(self._reconcile, name="slices")
        self.slices = NodeSlices(kube, node=settings.node, on_change=self._queue.add)
        self.node = Node(
            settings=settings,
            kube=kube,
            providers=providers if providers is not None else discovery.providers(settings),
            named=self._named,
            unregistered=self._unregistered,
            library_error=lambda: self._library_error,
            on_cards=self._queue_all,
        )
        self._starter = attach.Starter(
            settings=settings,
            store=self._store,
            specs=self._specs,
            slices=self.slices,
            isolations=self._isolations,
            edits=self.node.edits,
            steps=steps,
        )
        self._keeper = Keeper(
            kube=kube,
            slices=self.slices,
            store=self._store,
            specs=self._specs,
            starter=self._starter,
            isolations=self._isolations,
            counter=Counter(settings.proc),
            cards=self.node.cards,
            processes=self.node.processes,
            kubelet_checkpoint=settings.kubelet_checkpoint,
            clock=time.time,
            steps=steps,
        )
        self._plugins = tuple(
            Plugin(resource=resource, folder=settings.plugin_dir, answers=self._starter)
            for resource in (names.TICKET, names.INIT_TICKET)
        )
        self._probes = Probes(port=settings.health_port, ready=self._missing)

    async def run(self, stop: asyncio.Event) -> None:
        """Runs until told to stop; then says so, and lets kubelet's calls under way finish."""
        await self._start()
        closing = asyncio.Event()
        background = asyncio.create_task(self._background(), name="background")
        try:
            async with asyncio.TaskGroup() as tasks:
                for plugin in self._plugins:
                    tasks.create_task(plugin.run(closing), name=plugin.resource)
                tasks.create_task(self._leave(stop, background, closing), name="stop")
        finally:
            background.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await background
            await self._probes.close()

    async def _leave(self, stop: asyncio.Event, background: asyncio.Task[None], closing: asyncio.Event) -> None:
        """The word first, then the plug-ins: no pod is sent here any more when kubelet loses them."""
        await _until(stop, background)
        await self.node.leave()
        closing.set()

    async def _start(self) -> None:
        """Everything that must hold before kubelet's first call, from this node's files alone."""
        self._store.load(self._rebuild)
        self._install()
        await self._keeper.sweep()
        await self._starter.restore()
        if self.settings.health_port:
            await self._probes.start()

    async def _background(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.slices.informer.run(), name="watch-slices")
            tasks.create_task(self.node.informer.run(), name="watch-node")
            tasks.create_task(self.node.run(), name="node")
            tasks.create_task(self._queue.run(), name="queue")
            tasks.create_task(self._sweep(), name="sweep")
            tasks.create_task(self._watch_registration(), name="registration")

    async def _sweep(self) -> None:
        await self.slices.informer.synced()
        while True:
            try:
                for name in await self._keeper.sweep():
                    self._queue.add(name)
            except Exception:
                logger.exception("the sweep failed")
            await asyncio.sleep(SWEEP_PERIOD)

    async def _watch_registration(self) -> None:
        """A change of registration is a change of the node's condition."""
        before: Sequence[str] = ()
        while True:
            if (now := self._unregistered()) != before:
                before = now
                self.node.look()
            await asyncio.sleep(0.25)

    async def _reconcile(self, name: str) -> float | None:
        return await self._keeper.reconcile(name)

    def _rebuild(self) -> Mapping[str, Ticket]:
        try:
            entries = kubelet.read_checkpoint(self.settings.kubelet_checkpoint)
        except kubelet.KubeletError as error:
            logger.error("%s", error)  # noqa: TRY400 - said once, without a trace
            return {}
        return allocate.rebuilt(entries, attach.attachments_noted(self._specs))

    def _install(self) -> None:
        used = sorted(self._specs.host_paths())
        for isolation in self._isolations.values():
            try:
                isolation.install(used=used)
            except IsolationError as error:
                self._library_error = str(error)
                logger.error("isolation %s: %s", isolation.name, error)  # noqa: TRY400
            except Exception:
                logger.exception("isolation %s cannot be installed", isolation.name)

    def _named(self) -> set[str]:
        return {share.uuid for found in self.slices.values() for share in found.spec.cards}

    def _unregistered(self) -> tuple[str, ...]:
        return tuple(plugin.resource for plugin in self._plugins if not plugin.registered)

    def _missing(self) -> str:
        missing = self._unregistered()
        return f"not registered with kubelet: {', '.join(missing)}" if missing else ""

    def _queue_all(self) -> None:
        for found in self.slices.values():
            self._queue.add(found.metadata.name)


async def _until(stop: asyncio.Event, background: asyncio.Task[None]) -> None:
    """Ends when told to; raises what ended the background, which is a bug."""
    waiting = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({waiting, background}, return_when=asyncio.FIRST_COMPLETED)
        if background.done():
            background.result()
    finally:
        waiting.cancel()
