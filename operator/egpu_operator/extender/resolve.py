"""What a pod's claims mean for scheduling. Pure on the caches, so that filter answers in a millisecond."""

from collections.abc import Mapping
from dataclasses import dataclass

from egpu import placement, reasons
from egpu.placement import Ask, Misfit, NodeView
from egpu.types import BindingMode, Claim, GPUClass, Pod, Slice
from egpu_operator.provision import ask_of
from egpu_operator.world import World


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """One claim of a pod: for which containers, and what there is of it.

    Attributes:
        key: the claim's ``namespace/name``.
        containers: the pod's containers that share it.
        claim: the claim, if it exists.
        gpu_class: its class, if that exists.
        slice: its slice, if it has one.
    """

    key: str
    containers: tuple[str, ...]
    claim: Claim | None = None
    gpu_class: GPUClass | None = None
    slice: Slice | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What all the claims of a pod ask for together.

    Attributes:
        problem: why no node will do, whatever its room; empty if there is no such reason.
        nodes: the nodes its bound claims are on; more than one fits nowhere.
        orders: the uses that still need room, with what they ask.
    """

    problem: str = ""
    nodes: frozenset[str] = frozenset()
    orders: tuple[tuple[Use, Ask], ...] = ()

    @property
    def asks(self) -> list[Ask]:
        """What needs room, in order."""
        return [ask for _, ask in self.orders]


def uses(pod: Pod, *, world: World) -> list[Use]:
    """The claims of a pod, each once, as the caches know them."""
    containers: dict[str, list[str]] = {}
    for container, name in pod.claims.items():
        containers.setdefault(f"{pod.metadata.namespace}/{name}", []).append(container)
    return [_use(key, tuple(users), world=world) for key, users in containers.items()]


def _use(key: str, containers: tuple[str, ...], *, world: World) -> Use:
    claim = world.claims.get(key)
    if claim is None:
        return Use(key=key, containers=containers)
    name = claim.spec.egpu_class_name
    gpu_class = world.classes.get(name) if name else world.default_class()
    return Use(key=key, containers=containers, claim=claim, gpu_class=gpu_class, slice=world.slice_of(claim))


def wish(pod: Pod, wanted: list[Use]) -> Wish:
    """What a pod's claims ask for together."""
    nodes: set[str] = set()
    orders: list[tuple[Use, Ask]] = []
    for use in wanted:
        problem = _problem(pod, use)
        if problem:
            return Wish(problem=problem)
        if use.slice is not None:
            nodes.add(use.slice.spec.node_name)
        elif use.claim is not None and use.gpu_class is not None:
            orders.append((use, ask_of(use.claim, use.gpu_class)))
    return Wish(nodes=frozenset(nodes), orders=tuple(orders))


def _problem(pod: Pod, use: Use) -> str:
    """Why a claim cannot be used by the pod wherever it runs; empty if it can."""
    if use.claim is None:
        return reasons.claim_missing(use.key)
    if use.claim.metadata.deleting:
        return reasons.claim_deleting(use.key)
    if use.slice is not None:
        return _slice_problem(pod, use.key, use.slice)
    if use.claim.status.egpu_name:
        return reasons.claim_unbound(use.key, reasons.lost(use.claim.status.egpu_name))
    if use.gpu_class is None:
        name = use.claim.spec.egpu_class_name
        return reasons.claim_unbound(use.key, reasons.class_missing(name) if name else reasons.no_class(use.key))
    return _order_problem(use.key, use.claim, use.gpu_class)


def _slice_problem(pod: Pod, key: str, held: Slice) -> str:
    if held.metadata.deleting:
        return reasons.claim_unbound(key, reasons.slice_going(held.metadata.name))
    user = held.spec.consumer
    if user is None:
        return ""
    who = f"{user.pod_namespace}/{user.pod_name}"
    if user.releasing:
        return reasons.being_released(key, who)
    return "" if user.pod_uid == pod.metadata.uid else reasons.in_use(key, who)


def _order_problem(key: str, claim: Claim, gpu_class: GPUClass) -> str:
    """A claim without a slice is bound with the pod only where it waits for one."""
    if claim.spec.egpu_name:
        return reasons.claim_unbound(key, f"it waits for ElasticGPU {claim.spec.egpu_name}")
    if gpu_class.binding_mode is BindingMode.IMMEDIATE:
        return reasons.claim_unbound(key, f"it waits for room (kubectl describe egpuc {claim.metadata.name})")
    try:
        ask_of(claim, gpu_class)
    except ValueError as error:
        return reasons.claim_unbound(key, str(error))
    return ""


def misfit(name: str, *, view: NodeView | None, wanted: Wish) -> Misfit | None:
    """Why a node does not fit, or None if it does."""
    if wanted.nodes and wanted.nodes != {name}:
        return Misfit(node=name, reason=reasons.NODE_ELSEWHERE)
    if not wanted.orders and not wanted.nodes:
        return None
    if view is None:
        return Misfit(node=name, reason=reasons.NODE_NO_CARDS)
    if not wanted.orders:
        return None if view.ready else Misfit(node=name, reason=reasons.NODE_NOT_READY, cards=len(view.rooms))
    asks = wanted.asks
    return None if placement.fits(view, asks) else placement.explain(view, asks)


def fits_somewhere(wanted: Wish, views: Mapping[str, NodeView]) -> bool:
    """Whether any node would take the pod now."""
    return not wanted.problem and any(misfit(name, view=view, wanted=wanted) is None for name, view in views.items())
