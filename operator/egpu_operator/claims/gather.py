"""What a claim's decision looks at, from the caches; what would be taken as gone is asked for directly."""

from egpu import placement, reasons
from egpu.resources import CLASSES, SLICES
from egpu.types import Claim, GPUClass, Slice
from egpu_operator.claims.decide import Observed
from egpu_operator.world import World


async def gather(claim: Claim, *, world: World) -> Observed:
    """A claim with its class and slices."""
    own = world.slice_of(claim) or await _slice(claim.status.egpu_name, claim, world=world)
    name = claim.spec.egpu_class_name
    return Observed(
        claim=claim,
        gpu_class=await find_class(name, world=world) if name and own is None else None,
        default=world.default_class() if not name else None,
        own=own,
        named=await _named(claim, world=world) if own is None else None,
        figures=lambda ask: figures(world, ask),
    )


async def find_class(name: str, *, world: World) -> GPUClass | None:
    """A class, asked for directly where the cache has none: it may have been created in the same breath."""
    held = world.classes.get(name)
    if held is None and (raw := await world.kube.find(CLASSES, name)) is not None:
        held = world.classes.put(raw)
    return held


def figures(world: World, ask: placement.Ask) -> str:
    """The figures of the nodes nearest to fitting, or nothing if one fits."""
    views = world.views()
    if any(placement.fits(view, [ask]) for view in views):
        return ""
    return placement.nearest(placement.explain(view, [ask]) for view in views)


def why_unplaced(world: World, ask: placement.Ask) -> str:
    """What to say of a claim that was placed nowhere: the figures, or the nodes that fit and take no claims."""
    fitting = sorted(view.name for view in world.views() if placement.fits(view, [ask]))
    if fitting:
        return reasons.closed(", ".join(fitting[: placement.NEAREST]))
    return reasons.no_room(figures(world, ask))


async def _slice(name: str | None, claim: Claim, *, world: World) -> Slice | None:
    """The slice the claim's status names, if it is there and still the claim's."""
    if not name or (raw := await world.kube.find(SLICES, name)) is None:
        return None
    held = world.slices.put(raw)
    return held if held.spec.claim_ref and held.spec.claim_ref.uid == claim.metadata.uid else None


async def _named(claim: Claim, *, world: World) -> Slice | None:
    name = claim.spec.egpu_name
    if not name:
        return world.promised_to(claim)
    held = world.slices.get(name)
    if held is None and (raw := await world.kube.find(SLICES, name)) is not None:
        held = world.slices.put(raw)
    return held
