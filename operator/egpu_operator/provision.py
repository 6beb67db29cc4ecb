"""From a claim to its slice: booking, then ElasticGPU. Every step can be repeated, by anybody, after any crash."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from egpu import errors, names
from egpu.kube import Kube
from egpu.placement import Ask, Shares
from egpu.request import parse_requests
from egpu.resources import SLICES
from egpu.types import Claim, Consumer, GPUClass, Slice, share_wire, wire
from egpu_operator.allocator import Allocator, Want
from egpu_operator.world import World

BOOKING_GOOD_FOR: Final = 30.0
"""Seconds after its booking within which a slice is created; a sweep frees what is a minute old and has no slice."""

Steps = Callable[[str], None]
"""Called with a step's name after each write; tests end the process there."""

STEP_PREPARED: Final = "claim-prepared"
STEP_BOOKED: Final = "booked"
STEP_SLICE: Final = "slice-created"
STEP_CONSUMER: Final = "consumer-set"
STEP_CLAIM: Final = "claim-bound"
STEP_POD: Final = "pod-bound"
STEPS: Final = (STEP_PREPARED, STEP_BOOKED, STEP_SLICE, STEP_CONSUMER, STEP_CLAIM, STEP_POD)


def no_steps(_step: str) -> None:
    """Does nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A claim to be given a slice, and the pod that is to have it at once, if any."""

    claim: Claim
    gpu_class: GPUClass
    ask: Ask
    consumer: Consumer | None = None

    @property
    def slice_name(self) -> str:
        """The one name its slice can have."""
        return names.slice_name(self.claim.metadata.uid)


def ask_of(claim: Claim, gpu_class: GPUClass) -> Ask:
    """What a claim asks of a node under its class.

    Raises:
        ValueError: its requests cannot be understood; the message says what to write.
    """
    request = parse_requests(
        claim.spec.resources.requests,
        provisioner=gpu_class.provisioner,
        precision=gpu_class.parameters.get("tflopsPrecision", "fp32"),
    )
    return Ask(request=request, selector=claim.spec.selector, card=gpu_class.placement.card)


class Provisioner:
    """Makes slices."""

    def __init__(self, *, kube: Kube, world: World, allocator: Allocator, steps: Steps = no_steps) -> None:
        self._kube = kube
        self._world = world
        self._allocator = allocator
        self._steps = steps

    async def provision(self, *, node: str, orders: Sequence[Order]) -> list[Slice]:
        """The slices of all the orders, booked on a node in one write.

        A claim that already has a slice keeps it, wherever that is: look at the answer's ``node_name``. What this
        call has booked and cannot use is given back, unless the API server's answer is unknown; then a later call or
        the sweep finds it.

        Raises:
            NoRoomError: they do not all fit the node.
            errors.KubeError: as usual.
        """
        begun = time.monotonic()
        wants = [Want(slice_name=o.slice_name, claim_uid=o.claim.metadata.uid, ask=o.ask) for o in orders]
        booked = await self._allocator.book(node=node, wants=wants)
        self._steps(STEP_BOOKED)
        unused = set(booked.fresh)
        made = []
        try:
            for order in orders:
                if time.monotonic() - begun > BOOKING_GOOD_FOR:
                    raise errors.Retry("creating slices took too long; trying again")  # noqa: TRY301
                made.append(await self._slice(order, node=node, shares=booked.shares[order.slice_name]))
                unused.discard(order.slice_name)
        except errors.Retry:
            raise
        except errors.KubeError:
            for name in sorted(unused):
                await self._allocator.release(name, node=node)
            raise
        return made

    async def _slice(self, order: Order, *, node: str, shares: Shares) -> Slice:
        try:
            raw = await self._kube.create(SLICES, slice_body(order, node=node, shares=shares))
        except errors.AlreadyExists:
            return await self._existing(order, node=node, shares=shares)
        made = self._world.slices.put(raw)
        self._steps(STEP_SLICE)
        return made

    async def _existing(self, order: Order, *, node: str, shares: Shares) -> Slice:
        """The slice another call has made; what it does not stand on is given back."""
        held = self._world.slices.put(await self._kube.get(SLICES, order.slice_name))
        ref = held.spec.claim_ref
        if held.metadata.deleting or ref is None or ref.uid != order.claim.metadata.uid:
            raise errors.Conflict(f"ElasticGPU {order.slice_name} of an earlier binding is still there")
        stands_on = {share.uuid for share in held.spec.cards} if held.spec.node_name == node else set()
        if {share.uuid for share in shares} - stands_on:
            await self._allocator.release(order.slice_name, node=node, keep=stands_on)
        return held


def slice_body(order: Order, *, node: str, shares: Shares) -> dict[str, Any]:
    """The ElasticGPU of an order, finalizers first: it never exists without them."""
    claim = order.claim.metadata
    spec = {
        "nodeName": node,
        "cards": [share_wire(share) for share in shares],
        "egpuClassName": order.gpu_class.metadata.name,
        "reclaimPolicy": order.gpu_class.reclaim_policy.value,
        "isolation": order.gpu_class.isolation.value,
        "claimRef": {"namespace": claim.namespace, "name": claim.name, "uid": claim.uid},
    }
    return {
        "apiVersion": names.API_VERSION,
        "kind": SLICES.kind,
        "metadata": {
            "name": order.slice_name,
            "labels": {names.LABEL_CLAIM_UID: claim.uid, names.LABEL_NODE: node},
            "finalizers": [names.FINALIZER_AGENT, names.FINALIZER_BOOKING],
        },
        "spec": {**spec, "consumer": wire(order.consumer)} if order.consumer else spec,
    }
