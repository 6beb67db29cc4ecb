"""The only part of admission that reads the API server; what it cannot learn in time it leaves out."""

import asyncio
import logging
from typing import Final

from egpu import errors
from egpu.kube import Kube, Object
from egpu.resources import CLAIMS, CLASSES
from egpu.types import GPUClass, ParseError
from egpu_operator.admission import pods, rules
from egpu_operator.admission.decide import NOTHING, Observed
from egpu_operator.admission.pods import JsonObject

log = logging.getLogger(__name__)
PATIENCE: Final = 1.0
"""Seconds a review waits for a look at the API server; nothing is refused for want of an answer."""


async def for_pod(kube: Kube, request: JsonObject) -> Observed:
    """Which of the claims a new pod names are missing or on their way out."""
    if request.get("operation") != "CREATE" or rules.violation(request.get("object") or {}):
        return NOTHING
    named = sorted(set(pods.claims(request.get("object") or {}).values()))
    namespace = str(request.get("namespace") or "default")
    try:
        async with asyncio.timeout(PATIENCE):
            found = await asyncio.gather(*(kube.find(CLAIMS, name, namespace=namespace) for name in named))
    except (TimeoutError, errors.KubeError) as error:
        log.warning("claims of namespace %s not looked at: %r", namespace, error)
        return NOTHING
    pairs = dict(zip(named, found, strict=True))
    return Observed(
        missing=frozenset(name for name, claim in pairs.items() if claim is None),
        deleting=frozenset(name for name, claim in pairs.items() if claim and _deleting(claim)),
    )


async def for_claim(kube: Kube, request: JsonObject) -> Observed:  # noqa: ARG001 - one signature for all
    """The classes; they are few."""
    try:
        async with asyncio.timeout(PATIENCE):
            items, _ = await kube.list(CLASSES)
            classes = [GPUClass.parse(item) for item in items]
    except (TimeoutError, errors.KubeError, ParseError) as error:
        log.warning("classes not looked at: %r", error)
        return NOTHING
    return Observed(classes={found.metadata.name: found for found in classes})


def _deleting(claim: Object) -> bool:
    return "deletionTimestamp" in claim["metadata"]
