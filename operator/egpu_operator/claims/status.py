"""Writing a claim's status: only if it differs, and only onto the claim it was decided for."""

from typing import Any

from egpu import conditions
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
