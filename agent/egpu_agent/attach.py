"""The path of a container into its slice: Allocate, PreStartContainer, CDI spec."""

import asyncio
import contextlib
import logging
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from egpu import errors, reasons
from egpu.types import Card, Slice
from egpu_agent import allocate, cdi, kubelet
from egpu_agent.allocate import Refused, Start
from egpu_agent.checkpoint import Attachment, Store, Ticket
from egpu_agent.crash import Steps, no_steps
from egpu_agent.isolation.base import Grant, Isolation, IsolationError
from egpu_agent.providers.base import DeviceEdits, ProviderError
from egpu_agent.settings import Settings

logger = logging.getLogger(__name__)

WAIT_FOR_SLICE = 5.0
"""Seconds a first start waits for its slice; kubelet gives PreStartContainer 30."""


class Known(Protocol):
    """The slices of this node as far as they are known."""

    @property
    def is_synced(self) -> bool:
        """Whether the API server ever answered."""

    @property
    def changed(self) -> asyncio.Event:
        """Set whenever a slice changes."""

    def get(self, name: str) -> Slice | None:
        """A slice by name."""

    def values(self) -> Iterable[Slice]:
        """All slices."""

    async def ask(self) -> None:
        """Takes in what the API server itself says now; raises :class:`egpu.errors.KubeError`."""


@dataclass(slots=True, kw_only=True)
class Starter:
    """Answers kubelet. Under a slice's lock it is attached or taken back, never both at once."""

    settings: Settings
    store: Store
    specs: cdi.SpecFiles
    slices: Known
    isolations: Mapping[str, Isolation]
    edits: Callable[[Sequence[str]], DeviceEdits]
    steps: Steps = no_steps
    clock: Callable[[], float] = time.time
    wait: float = WAIT_FOR_SLICE
    _locks: dict[str, asyncio.Lock] = field(default_factory=lambda: defaultdict(asyncio.Lock))

    def lock(self, slice_uid: str) -> asyncio.Lock:
        """The lock of a slice."""
        return self._locks[slice_uid]

    def keep_locks(self, slice_uids: Collection[str]) -> None:
        """Drops the locks of slices that are gone."""
        for uid in [uid for uid, lock in self._locks.items() if uid not in slice_uids and not lock.locked()]:
            del self._locks[uid]

    async def allocate(self, resource: str, ids: Collection[str]) -> str:
        """A CDI device name that never was and resolves to nothing yet.

        A full disk does not refuse the pod here, which would fail it for good: kubelet keeps the name in its own
        checkpoint, and the start, which is tried again, finds it there.
        """
        nonce = uuid.uuid4().hex
        fresh = Ticket(nonce=nonce, resource=resource, ids=tuple(sorted(ids)), time=self.clock())
        try:
            await self.store.put(fresh)
        except OSError:
            logger.exception("the checkpoint cannot be written; Allocate answers all the same")
        self.steps("allocate-stored")
        return allocate.cdi_name(nonce)

    async def start(self, resource: str, ids: Collection[str]) -> None:
        """Makes the CDI device of a container real; raises :class:`Refused` with what to do."""
        for start in self._starts(resource, ids):
            attachment = await self._attachment(start)
            await self._check_names(start, attachment)
            await asyncio.shield(asyncio.create_task(self._apply(start, attachment)))
            logger.info(
                "%s/%s container %s has ElasticGPU %s",
                attachment.pod_namespace,
                attachment.pod_name,
                start.container,
                attachment.slice_name,
            )

    async def restore(self) -> None:
        """Writes missing specs of attachments again, as after a reboot: kubelet may start containers before it asks."""
        for ticket in list(self.store.tickets.values()):
            held = ticket.attachment
            if held is None or held.revoked or self.specs.exists(ticket.nonce):
                continue
            with contextlib.suppress(IsolationError, ProviderError):
                await asyncio.to_thread(self._write, ticket.nonce, held)

    def _starts(self, resource: str, ids: Collection[str]) -> tuple[Start, ...]:
        try:
            entries = kubelet.read_checkpoint(self.settings.kubelet_checkpoint)
        except kubelet.KubeletError as error:
            logger.warning("%s", error)
            return allocate.starts_from_memory(self.store.tickets.values(), resource=resource, ids=ids)
        return allocate.starts(kubelet.holders(entries, resource=resource, ids=ids), ids=ids)

    async def _attachment(self, start: Start) -> Attachment:
        """What the checkpoint remembers while the API server has not been heard, else what the slice says."""
        remembered = allocate.known(start, self.store.tickets)
        if remembered is not None and not self.slices.is_synced:
            return remembered
        return allocate.attach(start, await self._slice(start))

    async def _slice(self, start: Start) -> Slice:
        """The slice of a start: from the watch, else from the API server, else after a short wait."""
        deadline = asyncio.get_running_loop().time() + self.wait
        asked = False
        while True:
            self.slices.changed.clear()
            found = allocate.slice_for(start, self.slices.values(), node=self.settings.node)
            if found is not None:
                return found
            if not asked:
                await self._ask(start)
                asked = True
                continue
            try:
                async with asyncio.timeout_at(deadline):
                    await self.slices.changed.wait()
            except TimeoutError:
                raise self._no_slice(start) from None

    async def _ask(self, start: Start) -> None:
        try:
            await self.slices.ask()
        except errors.KubeError as error:
            raise Refused(reasons.start_unreachable(start.container, str(error))) from error

    def _no_slice(self, start: Start) -> Refused:
        return Refused(reasons.start_no_slice(start.container, self.settings.node, start.pod_uid))

    def _still(self, start: Start, attachment: Attachment) -> Attachment:
        """The attachment as of now; a slice that was taken back meanwhile refuses the start."""
        allocate.known(start, self.store.tickets)
        if not self.slices.is_synced:
            return attachment
        current = self.slices.get(attachment.slice_name)
        if current is None or current.metadata.uid != attachment.slice_uid:
            raise self._no_slice(start)
        found = allocate.slice_for(start, [current], node=self.settings.node)
        if found is None:
            raise self._no_slice(start)
        return allocate.attach(start, found)

    async def _check_names(self, start: Start, attachment: Attachment) -> None:
        listed = await kubelet.pod_ids(
            self.settings.pod_resources,
            namespace=attachment.pod_namespace,
            pod=attachment.pod_name,
            container=start.container,
            resource=start.resource,
        )
        if listed is not None and listed != frozenset(start.ids):
            raise Refused(reasons.start_mismatch(start.container, attachment.slice_name))

    async def _apply(self, start: Start, attachment: Attachment) -> None:
        """To its end even if kubelet hangs up: the slice's lock is not given back with half of it done."""
        async with self.lock(attachment.slice_uid):
            await self._write_all(start, self._still(start, attachment))

    async def _write_all(self, start: Start, attachment: Attachment) -> None:
        """Limits, checkpoint, spec, in this order: what a spec names is there, and every spec is remembered."""
        try:
            prepared = await asyncio.to_thread(self._prepare, attachment)
            await self.store.put(allocate.ticket(start, attachment, now=self.clock()))
            self.steps("attachment-stored")
            await asyncio.to_thread(self._write_spec, start.nonce, attachment, prepared)
        except (OSError, IsolationError, ProviderError) as error:
            raise Refused(reasons.start_not_prepared(attachment.slice_name, str(error))) from error
        self.steps("spec-written")

    def _write(self, nonce: str, attachment: Attachment) -> None:
        self._write_spec(nonce, attachment, self._prepare(attachment))

    def _prepare(self, attachment: Attachment) -> cdi.Edits:
        isolation = self.isolations.get(attachment.isolation.value)
        if isolation is None:
            known = ", ".join(sorted(self.isolations))
            raise IsolationError(f"this agent has no isolation {attachment.isolation.value} (it has {known})")
        return isolation.prepare(Grant(slice_uid=attachment.slice_uid, cards=attachment.cards))

    def _write_spec(self, nonce: str, attachment: Attachment, prepared: cdi.Edits) -> None:
        devices = self.edits([card.uuid for card in attachment.cards])
        spec = cdi.build(
            nonce,
            edits=cdi.merge([prepared, devices.edits]),
            annotation=attachment.model_dump_json(by_alias=True),
            version=devices.version,
        )
        self.specs.write(nonce, spec)


def attachments_noted(specs: cdi.SpecFiles) -> dict[str, Attachment]:
    """What our CDI specs say about themselves, by nonce; unreadable notes are left out."""
    found: dict[str, Attachment] = {}
    for nonce in specs.nonces():
        note = specs.annotation(nonce)
        with contextlib.suppress(ValueError):
            if note is not None:
                found[nonce] = Attachment.model_validate_json(note)
    return found


def cards_by_uuid(cards: Iterable[Card], uuids: Collection[str]) -> tuple[Card, ...]:
    """The cards of some UUIDs; one the inventory does not know keeps its UUID alone."""
    held = {card.uuid: card for card in cards}
    return tuple(held.get(uuid_, Card(uuid=uuid_, index=-1, model="", memory=0)) for uuid_ in uuids)
