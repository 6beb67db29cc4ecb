"""The operator, put together: caches, queues, and which change wakes which key."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Protocol

from egpu import names
from egpu.events import Recorder
from egpu.kube import Kube
from egpu.placement import NodeView, view
from egpu.types import Claim, GPUClass, Node, NodeCards, Pod, Slice
from egpu.workqueue import WorkQueue
from egpu_operator.agents import Agents
from egpu_operator.allocator import Allocator
from egpu_operator.claims.reconcile import ClaimReconciler
from egpu_operator.classes.reconcile import ClassReconciler
from egpu_operator.consumers import Consumers
from egpu_operator.extender.bind import Binder
from egpu_operator.extender.handlers import Extender
from egpu_operator.extender.retry import Retrier
from egpu_operator.provision import Provisioner, Steps, no_steps
from egpu_operator.slices.reconcile import SliceReconciler
from egpu_operator.sweep import Sweep
from egpu_operator.watch import KopfWatch
from egpu_operator.world import World

logger = logging.getLogger(__name__)

SYNC_LIMIT: Final = 60.0


class Identity(Protocol):
    """The part of the settings that is used here."""

    @property
    def identity(self) -> str:
        """Who speaks in events."""


class Operator:
    """One term of leadership: :meth:`start`, then :meth:`run` until it ends, then :meth:`stop`.

    Args:
        kube: the API server.
        settings: the process's settings.
        steps: called after each write between a claim and a bound pod; for tests.
    """

    def __init__(self, kube: Kube, settings: Identity, *, steps: Steps = no_steps) -> None:
        self.world = world = World(kube)
        self._recorder = Recorder(kube=kube, controller=f"{names.GROUP}/{names.OPERATOR}", instance=settings.identity)
        allocator = Allocator(kube=kube, world=world)
        consumers = Consumers(kube=kube, world=world)
        provisioner = Provisioner(kube=kube, world=world, allocator=allocator, steps=steps)
        claims = ClaimReconciler(world=world, provisioner=provisioner, recorder=self._recorder, steps=steps)
        slices = SliceReconciler(world=world, allocator=allocator, consumers=consumers, recorder=self._recorder)
        agents = Agents(address_of=world.agent_address)
        binder = Binder(
            kube=kube, world=world, provisioner=provisioner, consumers=consumers, agents=agents, steps=steps
        )
        self._retrier = Retrier(world=world)
        self.extender = Extender(world=world, binder=binder, retrier=self._retrier)
        self._waiting_claims = claims.waiting
        self._claims = WorkQueue(claims, name="claims")
        self._slices = WorkQueue(slices, name="slices")
        self._classes = WorkQueue(ClassReconciler(world=world, recorder=self._recorder), name="classes", workers=1)
        self.sweep = Sweep(world=world, allocator=allocator, look_at_slice=self._slices.add)
        self._kopf = KopfWatch(kube=kube, claims=world.claims, classes=world.classes)
        self._watches: list[asyncio.Task[None]] = []
        self._connect()

    async def start(self) -> None:
        """Fills the caches by quorum lists and keeps them current from here on.

        Raises:
            errors.KubeError, TimeoutError: the API server does not answer.
        """
        await self.world.classes.refresh()
        await self.world.claims.refresh()
        self._watches = [asyncio.create_task(informer.run()) for informer in self.world.watched]
        async with asyncio.timeout(SYNC_LIMIT):
            await self._kopf.start()
            for informer in self.world.watched:
                await informer.synced()

    async def run(self) -> None:
        """Works until cancelled, or until a part of it that should never end has ended."""
        async with asyncio.TaskGroup() as group:
            for part in (self._claims.run, self._slices.run, self._classes.run, self._retrier.run):
                group.create_task(part())
            group.create_task(self.sweep.run())
            group.create_task(self._kopf.run())

    async def stop(self) -> None:
        """Ends the watches."""
        for task in self._watches:
            task.cancel()
        await asyncio.gather(*self._watches, return_exceptions=True)
        await self._kopf.stop()
        await self._recorder.drain()

    def _connect(self) -> None:
        world = self.world
        world.on_class(self._class_changed)
        world.on_claim(self._claim_changed)
        world.on_slice(self._slice_changed)
        world.on_node_cards(self._cards_changed)
        world.on_node(self._node_changed)
        world.on_pod(self._pod_changed)

    def _class_changed(self, key: str, before: GPUClass | None, after: GPUClass | None) -> None:
        self._classes.add(key)
        if before is None or (after is not None and after.is_default != before.is_default):
            waiting = (*self.world.claims_of_class(key), *self.world.claims_of_class(""))
            self._add_all(self._claims.add, waiting)
            self._retrier.changed()

    def _claim_changed(self, key: str, before: Claim | None, after: Claim | None) -> None:
        self._claims.add(key)
        for claim in (before, after):
            if claim is not None and claim.spec.egpu_class_name:
                self._classes.add(claim.spec.egpu_class_name)
        gone = after is None or after.metadata.deleting
        if gone and before is not None and (own := self.world.slice_of(before)) is not None:
            self._slices.add(own.metadata.name)
        self._retrier.changed()

    def _slice_changed(self, key: str, before: Slice | None, after: Slice | None) -> None:
        self._slices.add(key)
        self._add_all(self._claims.add, self.world.claims_for_slice(key))
        for own in (before, after):
            if own is not None and own.spec.claim_ref is not None:
                self._claims.add(f"{own.spec.claim_ref.namespace}/{own.spec.claim_ref.name}")
        self._retrier.changed()

    def _cards_changed(self, key: str, before: NodeCards | None, after: NodeCards | None) -> None:
        if before is None or after is None:
            self._add_all(self._slices.add, self.world.slices_of_node(key))
        if after is not None and (before is None or _grew(before, after)):
            self._room_grew()

    def _node_changed(self, key: str, before: Node | None, after: Node | None) -> None:
        if before is None or after is None or before.out_of_service != after.out_of_service:
            self._add_all(self._slices.add, self.world.slices_of_node(key))
        if before is None or after is None or before.spec != after.spec or _labels(before) != _labels(after):
            self._room_grew()

    def _pod_changed(self, key: str, before: Pod | None, after: Pod | None) -> None:  # noqa: ARG002 - a listener
        for pod in (before, after):
            if pod is not None and (after is None or after.ended or after.metadata.uid != pod.metadata.uid):
                self._add_all(self._slices.add, self.world.slices_of_pod(pod.metadata.uid))

    def _room_grew(self) -> None:
        self._add_all(self._claims.add, tuple(self._waiting_claims))
        self._retrier.changed()

    @staticmethod
    def _add_all(add: Callable[[str], None], keys: tuple[str, ...]) -> None:
        for key in keys:
            add(key)


def _labels(node: Node) -> dict[str, str]:
    return node.metadata.labels


def _grew(before: NodeCards, after: NodeCards) -> bool:
    """Whether anything may fit now that did not: room given back, a card back in health, the agent back."""
    if before.status is not after.status and before.status != after.status:
        return True
    old = {room.card.uuid: room for room in _view(before).rooms}
    return any(
        room.core > old[room.card.uuid].core or room.memory > old[room.card.uuid].memory
        for room in _view(after).rooms
        if room.card.uuid in old
    )


def _view(node: NodeCards) -> NodeView:
    return view(node, labels={}, ready=True)
