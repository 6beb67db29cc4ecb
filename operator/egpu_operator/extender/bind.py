"""Binding a pod: booking, ElasticGPUs, claims, then the pod itself. Each step can be repeated after a crash anywhere.

A step that fails leaves what is already the claim's with the claim, as a volume stays with its PersistentVolumeClaim;
the slice's consumer is this pod, so that the scheduler's next try takes up where this one ended, and if the pod is gone
by then the slices' reconciler asks it back.
"""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from egpu import errors, names, reasons
from egpu.kube import Kube
from egpu.placement import Ask
from egpu.resources import CLAIMS, PODS
from egpu.types import Claim, Consumer, Pod, Slice
from egpu_operator.agents import Agents
from egpu_operator.allocator import NoRoomError
from egpu_operator.claims import decide, status
from egpu_operator.consumers import Consumers, InUseError
from egpu_operator.extender.resolve import Use, uses, wish
from egpu_operator.provision import (
    STEP_CLAIM,
    STEP_CONSUMER,
    STEP_POD,
    STEP_PREPARED,
    Order,
    Provisioner,
    Steps,
    no_steps,
)
from egpu_operator.world import World

STATUS_TRIES = 4


class BindError(Exception):
    """The pod cannot be bound to that node now; the scheduler tries it again."""


class Binder:
    """Binds pods with claims."""

    def __init__(
        self,
        *,
        kube: Kube,
        world: World,
        provisioner: Provisioner,
        consumers: Consumers,
        agents: Agents,
        steps: Steps = no_steps,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._kube = kube
        self._world = world
        self._provisioner = provisioner
        self._consumers = consumers
        self._agents = agents
        self._steps = steps
        self._clock = clock

    async def bind(self, *, namespace: str, name: str, uid: str, node: str) -> None:
        """Binds a pod and its claims to a node; what is done already is not done again.

        Raises:
            BindError: it cannot be; the message is for the pod's event.
            errors.KubeError: the API server's troubles.
        """
        pod = await self._pod(namespace=namespace, name=name, uid=uid)
        if pod.spec.node_name == node:
            return
        if refusal := await self._agents.refusal(node):
            raise BindError(refusal)
        wanted = uses(pod, world=self._world)
        try:
            slices = await self._slices(pod, wanted, node=node)
        except NoRoomError as error:
            raise BindError(reasons.no_room(str(error))) from error
        except InUseError as error:
            raise BindError(f"a claim of the pod is {error}") from error
        for use, own in zip(wanted, slices, strict=True):
            if use.claim is not None:
                await self._claim_bound(use.claim, own)
        await self._bind_pod(pod, wanted, slices, node=node)

    async def _pod(self, *, namespace: str, name: str, uid: str) -> Pod:
        pod = self._world.pods.get(f"{namespace}/{name}")
        if pod is None or pod.metadata.uid != uid:
            raw = await self._kube.find(PODS, name, namespace=namespace)
            pod = Pod.parse(raw) if raw else None
        if pod is None or pod.metadata.uid != uid:
            raise BindError(f"pod {namespace}/{name} (UID {uid}) does not exist any more")
        if pod.metadata.deleting:
            raise BindError(f"pod {namespace}/{name} is being deleted")
        return pod

    async def _slices(self, pod: Pod, wanted: Sequence[Use], *, node: str) -> list[Slice]:
        """The slice of each use, all of them this pod's and on this node."""
        asked = wish(pod, list(wanted))
        if asked.problem:
            raise BindError(asked.problem)
        orders = [_order(pod, use, ask) for use, ask in asked.orders]
        for order in orders:
            await self._protect(order.claim)
        made = await self._provisioner.provision(node=node, orders=orders) if orders else []
        by_key = {use.key: own for (use, _), own in zip(asked.orders, made, strict=True)}
        return [await self._take(pod, use, use.slice or by_key[use.key], node=node) for use in wanted]

    async def _take(self, pod: Pod, use: Use, own: Slice, *, node: str) -> Slice:
        if own.spec.node_name != node:
            raise BindError(f"claim {use.key} is bound to node {own.spec.node_name}, not {node}")
        if own.spec.consumer == _consumer(pod, use.containers):
            return own
        taken = await self._consumers.take(own, _consumer(pod, use.containers))
        self._steps(STEP_CONSUMER)
        return taken

    async def _protect(self, claim: Claim) -> None:
        """The claim's finalizer stands before anything is booked for it."""
        if names.FINALIZER_CLAIM in claim.metadata.finalizers:
            return
        await status.protect(claim, world=self._world)
        self._steps(STEP_PREPARED)

    async def _claim_bound(self, claim: Claim, own: Slice) -> None:
        for _ in range(STATUS_TRIES):
            held = self._world.claims.get(claim.metadata.key)
            if held is None or held.metadata.uid != claim.metadata.uid:
                raise BindError(f"claim {claim.metadata.key} is gone")
            decision = decide.bound(held, own, now=self._clock())
            try:
                if decision.status and await status.write(held, decision.status, world=self._world):
                    self._steps(STEP_CLAIM)
            except errors.Conflict:
                await self._refetch(claim)
            else:
                return
        raise errors.Retry(f"claim {claim.metadata.key} keeps changing; trying again")

    async def _refetch(self, claim: Claim) -> None:
        raw = await self._kube.get(CLAIMS, claim.metadata.name, namespace=claim.metadata.namespace)
        self._world.claims.put(raw)

    async def _bind_pod(self, pod: Pod, wanted: Sequence[Use], slices: Sequence[Slice], *, node: str) -> None:
        """Posts the Binding; if it is refused because that has happened already, that is success."""
        meta = pod.metadata
        told = {
            f"{names.ANNOTATION_SLICE_PREFIX}{container}": own.metadata.name
            for use, own in zip(wanted, slices, strict=True)
            for container in use.containers
        }
        try:
            await self._kube.bind(namespace=meta.namespace, pod=meta.name, uid=meta.uid, node=node, annotations=told)
        except (errors.Conflict, errors.Rejected):
            raw = await self._kube.find(PODS, meta.name, namespace=meta.namespace)
            if raw is None or raw["metadata"]["uid"] != meta.uid or raw["spec"].get("nodeName") != node:
                raise
        self._steps(STEP_POD)


def _consumer(pod: Pod, containers: tuple[str, ...]) -> Consumer:
    return Consumer(
        pod_uid=pod.metadata.uid,
        pod_name=pod.metadata.name,
        pod_namespace=pod.metadata.namespace,
        containers=containers,
    )


def _order(pod: Pod, use: Use, ask: Ask) -> Order:
    if use.claim is None or use.gpu_class is None:
        raise BindError(reasons.claim_missing(use.key))
    return Order(claim=use.claim, gpu_class=use.gpu_class, ask=ask, consumer=_consumer(pod, use.containers))
