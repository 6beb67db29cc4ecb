"""Keeps each slice of this node as the API server wants it: limits, condition, and taking it back."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from egpu import conditions, errors, names, reasons, resources
from egpu.kube import Kube
from egpu.types import Card, CardShare, Condition, Slice
from egpu_agent import allocate, cdi, kubelet, release
from egpu_agent.attach import Starter
from egpu_agent.checkpoint import Store, Ticket
from egpu_agent.crash import Steps, no_steps
from egpu_agent.isolation.base import Grant, Isolation
from egpu_agent.processes import Counter
from egpu_agent.providers.base import CardProcess, ProviderError
from egpu_agent.release import Going, Health
from egpu_agent.slices import NodeSlices

logger = logging.getLogger(__name__)

LOOK_FIRST = 0.1
LOOK_MOST = 1.0
OFFLINE_RETRY = 2.0
FORGET_AFTER = 60.0


@dataclass(slots=True)
class Wait:
    """A release under way: since when, pids that were the pods', since when these are gone, how often looked."""

    since: float
    seen: set[int] = field(default_factory=set)
    clear: float | None = None
    looks: int = 0


@dataclass(slots=True, kw_only=True)
class Keeper:
    """Reconciles slices by name; level-triggered, every step repeatable."""

    kube: Kube
    slices: NodeSlices
    store: Store
    specs: cdi.SpecFiles
    starter: Starter
    isolations: Mapping[str, Isolation]
    counter: Counter
    cards: Callable[[], Mapping[str, Card] | None]
    processes: Callable[[Sequence[str]], tuple[CardProcess, ...]]
    kubelet_checkpoint: Path
    clock: Callable[[], float]
    steps: Steps = no_steps
    _waits: dict[str, Wait] = field(default_factory=dict)
    _let_go: set[str] = field(default_factory=set)

    async def reconcile(self, name: str) -> float | None:
        """One slice name, with whatever UIDs it stood for; seconds until it wants to be looked at again."""
        if not self.slices.is_synced:
            return OFFLINE_RETRY
        try:
            delays = [await self._one(uid, name) for uid in self._uids(name)]
        except errors.NotFound:
            return None
        except errors.Retry as error:
            logger.warning("ElasticGPU %s: %s", name, error)
            return OFFLINE_RETRY
        return min((delay for delay in delays if delay is not None), default=None)

    async def sweep(self) -> list[str]:
        """Removes what no slice answers for; returns the names of all slices that left something here."""
        self._forget_specs()
        await self._forget_tickets()
        if self.slices.is_synced:
            await self._forget_slices()
        held = {t.attachment.slice_name for t in self.store.tickets.values() if t.attachment}
        return sorted(held | {found.metadata.name for found in self.slices.values()})

    async def _forget_slices(self) -> None:
        """What is on the node is looked at first: a slice that starts meanwhile is known by then."""
        for isolation in self.isolations.values():
            for uid in await asyncio.to_thread(isolation.present):
                async with self.starter.lock(uid):
                    if uid not in self._known():
                        logger.info("removing what is left of slice %s", uid)
                        await asyncio.to_thread(isolation.remove, uid)
        known = self._known()
        self._let_go &= known
        self.starter.keep_locks(known)

    def _known(self) -> set[str]:
        attached = {t.attachment.slice_uid for t in self.store.tickets.values() if t.attachment}
        return attached | {found.metadata.uid for found in self.slices.values()}

    def _uids(self, name: str) -> list[str]:
        """The UID of today's slice of that name, and those that are still attached here."""
        attached = (t.attachment for t in self.store.tickets.values() if t.attachment is not None)
        uids = {a.slice_uid for a in attached if a.slice_name == name}
        found = self.slices.get(name)
        return sorted(uids | ({found.metadata.uid} if found else set()))

    async def _one(self, uid: str, name: str) -> float | None:
        if uid in self._let_go:
            return None
        going = await self._revoke(uid, name)
        found = self._found(uid, name)
        if going is None:
            self._waits.pop(uid, None)
            if found is not None:
                await self._follow_amounts(found)
                await self._publish(found)
            return None
        wait = self._waits.setdefault(uid, Wait(since=self.clock()))
        waiting = await self._waiting(going, uid, found, wait)
        if waiting:
            return await self._keep_waiting(found, wait, waiting)
        await self._finish(going, uid, found)
        self._waits.pop(uid, None)
        return None

    def _found(self, uid: str, name: str) -> Slice | None:
        found = self.slices.get(name)
        return found if found is not None and found.metadata.uid == uid else None

    async def _revoke(self, uid: str, name: str) -> Going | None:
        """Decides, and if anything is to go, closes its way in: first remembered, then the specs."""
        async with self.starter.lock(uid):
            tickets = self.store.of_slice(uid)
            going = release.going(self._found(uid, name), tickets)
            if going is None:
                return None
            fresh = [_revoked(t) for t in tickets if t.nonce in going.nonces and not _is_revoked(t)]
            try:
                if fresh:
                    await self.store.put(*fresh)
                    self.steps("revoked-stored")
            finally:
                self.specs.remove(going.nonces)
            self.steps("specs-removed")
            return going

    async def _waiting(self, going: Going, uid: str, found: Slice | None, wait: Wait) -> str:
        """For whom the release waits, or "" when nothing is left."""
        now = self.clock()
        census = await self.counter.take()
        wait.seen |= {process.pid for pod in going.pods for process in census.pods.get(pod, ())}
        left = release.blockers(census, going.pods)
        if left:
            wait.clear = None
            return reasons.waiting_for(len(left), left[0])
        wait.clear = now if wait.clear is None else wait.clear
        listed = await self._listed(self._shares(uid, found))
        held = release.held_on_cards(listed, census, seen=wait.seen, waited=now - wait.clear)
        return reasons.waiting_for_driver(", ".join(held)) if held else ""

    async def _keep_waiting(self, found: Slice | None, wait: Wait, waiting: str) -> float:
        wait.looks += 1
        if found is not None and self.clock() - wait.since > release.SAY_AFTER:
            await self._publish(found, waiting=waiting)
        return min(LOOK_FIRST * (1 << min(wait.looks // 4, 10)), LOOK_MOST)

    async def _listed(self, shares: Sequence[CardShare]) -> tuple[CardProcess, ...]:
        try:
            return await asyncio.to_thread(self.processes, [share.uuid for share in shares])
        except ProviderError as error:
            logger.warning("the driver does not say who is on the cards: %s", error)
            return ()

    def _shares(self, uid: str, found: Slice | None) -> Sequence[CardShare]:
        if found is not None:
            return found.spec.cards
        attached = (t.attachment for t in self.store.of_slice(uid))
        return next((a.cards for a in attached if a is not None), ())

    async def _finish(self, going: Going, uid: str, found: Slice | None) -> None:
        """Nothing of the pods is left: the files go, then the memory of them, then the API server hears of it."""
        async with self.starter.lock(uid):
            if going.whole:
                for isolation in self.isolations.values():
                    await asyncio.to_thread(isolation.remove, uid)
                self.steps("slice-removed")
            await self.store.drop(going.nonces)
            self.steps("tickets-dropped")
        if found is not None:
            await self._publish(found, released=going.released)
            if going.finalizer:
                await self._take_finalizer_off(found)
        logger.info("slice %s is free of pods %s", uid, ", ".join(sorted(going.pods)) or "(none)")

    async def _follow_amounts(self, found: Slice) -> None:
        """A resize: the limits page is rewritten in place, the specs stay."""
        async with self.starter.lock(found.metadata.uid):
            tickets = self.store.of_slice(found.metadata.uid)
            stale = [t for t in tickets if t.attachment is not None and t.attachment.cards != found.spec.cards]
            if not stale:
                return
            grant = Grant(slice_uid=found.metadata.uid, cards=found.spec.cards)
            isolation = self.isolations.get(found.spec.isolation.value)
            if isolation is not None:
                await asyncio.to_thread(isolation.update, grant)
            await self.store.put(*(_resized(ticket, found.spec.cards) for ticket in stale))

    async def _publish(self, found: Slice, *, waiting: str = "", released: str = "") -> None:
        """Writes the agent's part of a slice's status if anything of it changed."""
        if found.metadata.deleting and names.FINALIZER_AGENT not in found.metadata.finalizers:
            return
        cards = self.cards()
        merged = found.status.conditions
        if cards is not None or waiting:
            merged = self._conditions(found, release.health(found, cards or {}, waiting=waiting))
        pod_uid = released or found.status.released_pod_uid
        if merged == found.status.conditions and pod_uid == found.status.released_pod_uid:
            return
        ready = conditions.find(merged, reasons.READY)
        status: dict[str, Any] = {"conditions": conditions.to_wire([ready] if ready else [])}
        if pod_uid:
            status["releasedPodUID"] = pod_uid
        body = {"metadata": {"uid": found.metadata.uid}, "status": status}
        answer = await self.kube.apply(
            resources.SLICES, found.metadata.name, body, manager=names.MANAGER_AGENT, subresource="status"
        )
        self.slices.informer.put(answer)

    def _conditions(self, found: Slice, health: Health) -> tuple[Condition, ...]:
        return conditions.merge(
            found.status.conditions,
            kind=reasons.READY,
            status=health.status,
            reason=health.reason,
            message=health.message,
            generation=found.metadata.generation,
            now=datetime.fromtimestamp(self.clock(), tz=UTC).replace(microsecond=0),
        )

    async def _take_finalizer_off(self, found: Slice) -> None:
        """The last word about a slice; the watch may show the finalizer a little longer."""
        index = found.metadata.finalizers.index(names.FINALIZER_AGENT)
        path = f"/metadata/finalizers/{index}"
        operations = [
            {"op": "test", "path": "/metadata/uid", "value": found.metadata.uid},
            {"op": "test", "path": path, "value": names.FINALIZER_AGENT},
            {"op": "remove", "path": path},
        ]
        try:
            await self.kube.patch_json(resources.SLICES, found.metadata.name, operations)
        except errors.Rejected as error:
            if error.status != 422:
                raise
            raise errors.Conflict(f"its finalizers changed meanwhile: {error}") from error
        self._let_go.add(found.metadata.uid)

    def _forget_specs(self) -> None:
        """Specs whose nonce means nothing (any more)."""
        live = {t.nonce for t in self.store.tickets.values() if t.attachment is not None and not t.attachment.revoked}
        stale = self.specs.nonces() - live
        if stale:
            logger.info("removing %d CDI specs that no attached slice answers for", len(stale))
        self.specs.remove(stale)

    async def _forget_tickets(self) -> None:
        try:
            entries = kubelet.read_checkpoint(self.kubelet_checkpoint)
        except kubelet.KubeletError as error:
            logger.warning("%s", error)
            return
        tickets = list(self.store.tickets.values())
        await self.store.drop(allocate.forgotten(tickets, entries, now=self.clock(), age=FORGET_AFTER))


def _is_revoked(ticket: Ticket) -> bool:
    return ticket.attachment is not None and ticket.attachment.revoked


def _revoked(ticket: Ticket) -> Ticket:
    attachment = ticket.attachment
    return ticket.model_copy(update={"attachment": attachment and attachment.model_copy(update={"revoked": True})})


def _resized(ticket: Ticket, cards: tuple[CardShare, ...]) -> Ticket:
    attachment = ticket.attachment
    return ticket.model_copy(update={"attachment": attachment and attachment.model_copy(update={"cards": cards})})
