"""Writing claims: only what differs, and only onto the claim it was decided for."""

from typing import Any

from egpu import conditions, names
from egpu.resources import CLAIMS
from egpu.types import Claim, ClaimStatus, share_wire
from egpu_operator.world import World


async def write(claim: Claim, status: ClaimStatus, *, world: World) -> bool:
    """Writes the status; True if there was anything to write.

    Raises:
        errors.Conflict: the claim has changed since it was read.
        errors.NotFound: it is gone.
    """
    if status == claim.status:
        return False
    meta = claim.metadata
    body = {"metadata": {"resourceVersion": meta.resource_version, "uid": meta.uid}, "status": status_wire(status)}
    world.claims.put(
        await world.kube.patch_merge(CLAIMS, meta.name, body, namespace=meta.namespace, subresource="status")
    )
    return True


async def protect(claim: Claim, *, world: World, fill_class: str | None = None) -> None:
    """Adds the finalizer, and with it the class, on exactly the claim that was read."""
    held = claim.metadata.finalizers
    finalizers = held if names.FINALIZER_CLAIM in held else (*held, names.FINALIZER_CLAIM)
    await _main(claim, finalizers, world=world, spec={"egpuClassName": fill_class} if fill_class else None)


async def unprotect(claim: Claim, *, world: World) -> None:
    """Removes the finalizer."""
    left = tuple(name for name in claim.metadata.finalizers if name != names.FINALIZER_CLAIM)
    await _main(claim, left, world=world)


async def _main(claim: Claim, finalizers: tuple[str, ...], *, world: World, spec: dict[str, Any] | None = None) -> None:
    meta = claim.metadata
    body: dict[str, Any] = {
        "metadata": {"resourceVersion": meta.resource_version, "uid": meta.uid, "finalizers": list(finalizers)}
    }
    if spec:
        body["spec"] = spec
    world.claims.put(await world.kube.patch_merge(CLAIMS, meta.name, body, namespace=meta.namespace))


def status_wire(status: ClaimStatus) -> dict[str, Any]:
    """A status as a merge patch: what it does not have is taken away."""
    return {
        "phase": status.phase.value if status.phase else None,
        "egpuName": status.egpu_name,
        "node": status.node,
        "cards": [share_wire(share) for share in status.cards] or None,
        "observedGeneration": status.observed_generation,
        "conditions": conditions.to_wire(status.conditions),
    }
