"""Claims: one key in, one step at a time, until the decision is that nothing is left to do."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

from egpu import errors, names, placement
from egpu.events import Recorder, Subject
from egpu.placement import Ask
from egpu.resources import CLAIMS, SLICES
from egpu.types import Claim, GPUClass, Slice
from egpu_operator.allocator import NoRoomError
from egpu_operator.claims import decide as decisions
from egpu_operator.claims import status
from egpu_operator.claims.decide import Decision, Observed
from egpu_operator.claims.gather import gather, why_unplaced
from egpu_operator.provision import STEP_CLAIM, STEP_PREPARED, Order, Provisioner, Steps, no_steps
from egpu_operator.world import World

ROUNDS: Final = 6
TRIES: Final = 4


class ClaimReconciler:
    """Brings claims to what they ask for."""

    def __init__(
        self,
        *,
        world: World,
        provisioner: Provisioner,
        recorder: Recorder,
        steps: Steps = no_steps,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._world = world
        self._provisioner = provisioner
        self._recorder = recorder
        self._steps = steps
        self._clock = clock
        self.waiting: set[str] = set()
        """Keys of the claims that wait for room."""

    async def __call__(self, key: str) -> float | None:
        """Reconciles one claim."""
        self.waiting.discard(key)
        for _ in range(ROUNDS):
            claim = self._world.claims.get(key)
            if claim is None:
                return None
            try:
                if await self._step(claim):
                    return None
            except (errors.NotFound, errors.Conflict):
                await self._look_again(claim)
        raise errors.Conflict(f"claim {key} needs another look")

    async def _step(self, claim: Claim) -> bool:
        """One decision carried out; True when the claim needs no further one."""
        seen = await gather(claim, world=self._world)
        decision = decisions.decide(seen, now=self._clock())
        if decision.protect or decision.fill_class or decision.unprotect:
            await self._prepare(claim, decision)
            return decision.unprotect
        if decision.adopt is not None:
            await self._adopt(claim, decision.adopt)
            return False
        if decision.place is not None:
            decision = await self._place(seen, decision.place)
        await self._tell(claim, decision)
        return True

    async def _prepare(self, claim: Claim, decision: Decision) -> None:
        if decision.unprotect:
            await status.unprotect(claim, world=self._world)
        else:
            await status.protect(claim, world=self._world, fill_class=decision.fill_class)
        self._steps(STEP_PREPARED)

    async def _adopt(self, claim: Claim, free: Slice) -> None:
        ref = {"namespace": claim.metadata.namespace, "name": claim.metadata.name, "uid": claim.metadata.uid}
        patch: list[dict[str, Any]] = [
            {"op": "test", "path": "/metadata/resourceVersion", "value": free.metadata.resource_version},
            {"op": "add", "path": "/spec/claimRef", "value": ref},
        ]
        try:
            self._world.slices.put(await self._world.kube.patch_json(SLICES, free.metadata.name, patch))
        except errors.Conflict:
            self._world.slices.put(await self._world.kube.get(SLICES, free.metadata.name))

    async def _place(self, seen: Observed, ask: Ask) -> Decision:
        """Room for a claim that does not wait for a pod; the next best node where a race for the best one is lost."""
        claim = seen.claim
        if seen.gpu_class is None:
            raise errors.Conflict("the class vanished")
        for _ in range(TRIES):
            node = self._node_for(claim, seen.gpu_class, ask)
            if node is None:
                break
            order = Order(claim=claim, gpu_class=seen.gpu_class, ask=ask)
            try:
                [made] = await self._provisioner.provision(node=node, orders=[order])
            except NoRoomError:
                continue
            return decisions.bound(claim, made, now=self._clock())
        else:
            raise errors.Conflict(f"claim {claim.metadata.key} loses every race for room")
        self.waiting.add(claim.metadata.key)
        return decisions.no_room(claim, why_unplaced(self._world, ask), now=self._clock())

    def _node_for(self, claim: Claim, gpu_class: GPUClass, ask: Ask) -> str | None:
        """The node an earlier attempt has booked on, else the best."""
        earlier = self._world.booked_on(names.slice_name(claim.metadata.uid))
        if earlier:
            return earlier[0]
        return placement.best_node(self._world.views(open_only=True), ask, gpu_class.placement.node)

    async def _tell(self, claim: Claim, decision: Decision) -> None:
        if decision.status is None or not await status.write(claim, decision.status, world=self._world):
            return
        if decision.status.egpu_name:
            self._steps(STEP_CLAIM)
        if decision.event is not None:
            self._recorder.say(Subject.of(CLAIMS, claim.metadata), decision.event)

    async def _look_again(self, claim: Claim) -> None:
        """Something was not as the caches have it: perhaps the claim itself."""
        meta = claim.metadata
        raw = await self._world.kube.find(CLAIMS, meta.name, namespace=meta.namespace)
        if raw is None:
            self._world.claims.forget(meta.key)
        else:
            self._world.claims.put(raw)
