"""What a slice's decision looks at. That a claim, pod or node is gone is never believed of a cache: it is asked."""

from egpu.resources import CLAIMS, NODES, PODS
from egpu.types import ClaimRef, Consumer, Node, Pod, Slice
from egpu_operator import bookings
from egpu_operator.slices.decide import Observed
from egpu_operator.world import World


async def gather(own: Slice, *, world: World) -> Observed:
    """A slice with what it stands on."""
    cards = world.node_cards.get(own.spec.node_name)
    held = {share.uuid for share in bookings.booked(cards, own.metadata.name)} if cards else set()
    consumer, ref = own.spec.consumer, own.spec.claim_ref
    return Observed(
        slice=own,
        booked={share.uuid for share in own.spec.cards} <= held,
        claim_gone=ref is not None and bool(ref.uid) and await _claim_gone(ref, world=world),
        pod_gone=consumer is not None and await _pod_gone(consumer, world=world),
        node_gone=await _node_gone(own.spec.node_name, world=world),
    )


async def _claim_gone(ref: ClaimRef, *, world: World) -> bool:
    held = world.claims.get(f"{ref.namespace}/{ref.name}")
    if held is not None and held.metadata.uid == ref.uid:
        return False
    raw = await world.kube.find(CLAIMS, ref.name, namespace=ref.namespace)
    return raw is None or raw["metadata"]["uid"] != ref.uid


async def _pod_gone(consumer: Consumer, *, world: World) -> bool:
    held = world.pods.get(f"{consumer.pod_namespace}/{consumer.pod_name}")
    if held is not None and held.metadata.uid == consumer.pod_uid and not held.ended:
        return False
    raw = await world.kube.find(PODS, consumer.pod_name, namespace=consumer.pod_namespace)
    return raw is None or raw["metadata"]["uid"] != consumer.pod_uid or Pod.parse(raw).ended


async def _node_gone(name: str, *, world: World) -> bool:
    held = world.nodes.get(name)
    if held is not None and not held.out_of_service:
        return False
    raw = await world.kube.find(NODES, name)
    return raw is None or Node.parse(raw).out_of_service
