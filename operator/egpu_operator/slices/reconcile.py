"""Slices: one key in, steps until nothing is left to do but wait for somebody else."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

from egpu import conditions, errors, reasons
from egpu.events import Event, Recorder, Subject, normal
from egpu.resources import SLICES
from egpu.types import Phase, Slice
from egpu_operator.allocator import Allocator, NoRoomError
from egpu_operator.bookings import Entry
from egpu_operator.consumers import Consumers
from egpu_operator.slices import decide as decisions
from egpu_operator.slices.decide import Decision, Observed
from egpu_operator.slices.gather import gather
from egpu_operator.world import World

ROUNDS: Final = 8


class SliceReconciler:
    """Brings slices to what their claim, pod and node ask of them."""

    def __init__(
        self,
        *,
        world: World,
        allocator: Allocator,
        consumers: Consumers,
        recorder: Recorder,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._world = world
        self._allocator = allocator
        self._consumers = consumers
        self._recorder = recorder
        self._clock = clock

    async def __call__(self, name: str) -> float | None:
        """Reconciles one slice."""
        for _ in range(ROUNDS):
            own = self._world.slices.get(name)
            if own is None:
                return None
            seen = await gather(own, world=self._world)
            decision = decisions.decide(seen)
            try:
                if await self._apply(seen, decision):
                    return decision.look_again
            except (errors.NotFound, errors.Conflict):
                await self._look_again(name)
        raise errors.Conflict(f"ElasticGPU {name} needs another look")

    async def _apply(self, seen: Observed, decision: Decision) -> bool:
        """True when the slice needs no further look now."""
        own = seen.slice
        if decision.book:
            return await self._book(own)
        if decision.ask_back or decision.clear_consumer:
            await self._use(own, decision)
            return False
        if decision.delete:
            await self._world.kube.delete(SLICES, own.metadata.name, uid=own.metadata.uid)
            return True
        if decision.free:
            await self._allocator.release(own.metadata.name, node=own.spec.node_name)
        if decision.finalizers is not None:
            await self._finalizers(own, decision.finalizers)
            return not decision.finalizers
        if decision.phase is not None:
            await self._tell(own, decision.phase, booked=True)
        return True

    async def _book(self, own: Slice) -> bool:
        claim_uid = own.spec.claim_ref.uid if own.spec.claim_ref else ""
        entry = Entry(slice_name=own.metadata.name, claim_uid=claim_uid, shares=own.spec.cards)
        try:
            await self._allocator.book_exactly(node=own.spec.node_name, entry=entry)
        except (NoRoomError, errors.NotFound):
            await self._tell(own, Phase.FAILED if claim_uid else Phase.PENDING, booked=False)
            return True
        return False

    async def _use(self, own: Slice, decision: Decision) -> None:
        user = own.spec.consumer
        if user is None:
            return
        if decision.clear_consumer:
            await self._consumers.clear(own, pod_uid=user.pod_uid)
            what = normal(reason=reasons.EVENT_RELEASED, action=decisions.ACTION, note=reasons.released(user.pod_name))
        else:
            await self._consumers.ask_back(own, pod_uid=user.pod_uid)
            what = normal(
                reason=reasons.EVENT_RELEASING, action=decisions.ACTION, note=reasons.releasing(user.pod_name)
            )
        self._say(own, what)

    async def _finalizers(self, own: Slice, finalizers: tuple[str, ...]) -> None:
        meta = {
            "resourceVersion": own.metadata.resource_version,
            "uid": own.metadata.uid,
            "finalizers": list(finalizers),
        }
        self._world.slices.put(await self._world.kube.patch_merge(SLICES, own.metadata.name, {"metadata": meta}))

    async def _tell(self, own: Slice, phase: Phase, *, booked: bool) -> None:
        """Phase and the condition Booked; the agent's conditions stay, whatever they are by now."""
        merged = decisions.booked_condition(own, booked=booked, now=self._clock())
        if phase is own.status.phase and merged == own.status.conditions:
            return
        body: dict[str, Any] = {
            "metadata": {"resourceVersion": own.metadata.resource_version, "uid": own.metadata.uid},
            "status": {"phase": phase.value, "conditions": conditions.to_wire(merged)},
        }
        raw = await self._world.kube.patch_merge(SLICES, own.metadata.name, body, subresource="status")
        self._world.slices.put(raw)

    def _say(self, own: Slice, event: Event) -> None:
        self._recorder.say(Subject.of(SLICES, own.metadata), event)

    async def _look_again(self, name: str) -> None:
        raw = await self._world.kube.find(SLICES, name)
        if raw is None:
            self._world.slices.forget(name)
        else:
            self._world.slices.put(raw)
