"""What a pod may ask for: a chain of pure rules, each giving the sentence it refuses with, or None."""

import re
from collections.abc import Callable, Iterator
from typing import Final

from egpu import names
from egpu_operator.admission import messages, pods
from egpu_operator.admission.pods import JsonObject

DEFAULT_SCHEDULER: Final = "default-scheduler"
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_NAME_LENGTH: Final = 253
"""Names of objects are DNS subdomains (RFC 1123), as apimachinery's ``IsDNS1123Subdomain`` has them."""

Rule = Callable[[JsonObject], str | None]


def slice_annotations(pod: JsonObject) -> str | None:
    """The operator's annotations are the operator's."""
    found = next((key for key in pods.annotations(pod) if key.startswith(names.ANNOTATION_SLICE_PREFIX)), None)
    return messages.slice_annotation(found) if found else None


def claim_names(pod: JsonObject) -> str | None:
    """Every annotation names a claim of the pod's own namespace."""
    for suffix, value in pods.written(pod).items():
        key = names.ANNOTATION_CLAIM_PREFIX + suffix
        if "/" in value:
            return messages.foreign_namespace(key, value)
        if len(value) > _NAME_LENGTH or not _NAME.fullmatch(value):
            return messages.bad_claim_name(key, value)
    return None


def containers_named(pod: JsonObject) -> str | None:
    """With several containers an annotation names one of them; with one, any name goes."""
    found = pods.written(pod)
    everyone = [box.name for box in pods.boxes(pod)]
    if len(everyone) == 1:
        keys = [names.ANNOTATION_CLAIM_PREFIX + suffix for suffix in found]
        return messages.several_for_one(keys, everyone[0]) if len(found) > 1 else None
    stranger = next((suffix for suffix in found if suffix not in everyone), None)
    return None if stranger is None else messages.unknown_container(stranger, everyone)


def resources(pod: JsonObject) -> str | None:
    """Tickets are written by admission, amounts stand in claims."""
    claims = pods.claims(pod)
    for box in pods.boxes(pod):
        for key, amount in box.amounts():
            if not pods.is_ours(key):
                continue
            if key in (names.TICKET, names.INIT_TICKET):
                if box.name not in claims or key != box.ticket or str(amount) != "1":
                    return messages.hand_ticket(box.name, key)
            elif key.partition("/")[2] in names.REQUEST_KEYS:
                return messages.direct_request(box.name, key)
            else:
                return messages.unknown_resource(box.name, key)
    return None


def label(pod: JsonObject) -> str | None:
    """The label marks pods with claims and no others."""
    return messages.DENIED_LABEL if names.LABEL_MANAGED in pods.labels(pod) and not pods.written(pod) else None


def scheduler(pod: JsonObject) -> str | None:
    """A pod with a claim is scheduled by a scheduler that asks us."""
    name = (pod.get("spec") or {}).get("schedulerName")
    known = name in (None, "", DEFAULT_SCHEDULER, names.SCHEDULER)
    return None if known or not pods.written(pod) else messages.other_scheduler(str(name))


def node_name(pod: JsonObject) -> str | None:
    """A pod with a claim is placed by a scheduler, not by hand."""
    placed = (pod.get("spec") or {}).get("nodeName")
    return messages.DENIED_NODE_NAME if placed and pods.written(pod) else None


def init_containers(pod: JsonObject) -> str | None:
    """All ordinary init containers of a pod share one claim."""
    claims = pods.claims(pod)
    found = {claims[box.name] for box in pods.boxes(pod) if box.ordinary_init and box.name in claims}
    return messages.init_claims(sorted(found)) if len(found) > 1 else None


RULES: Final[tuple[Rule, ...]] = (
    slice_annotations,
    claim_names,
    containers_named,
    resources,
    label,
    node_name,
    scheduler,
    init_containers,
)


def violation(pod: JsonObject) -> str | None:
    """The first rule a new pod breaks, in words; None where it may be created."""
    return next((message for rule in RULES if (message := rule(pod))), None)


def gaps(pod: JsonObject) -> Iterator[str]:
    """What a pod with claims still lacks after mutation; a later webhook may have taken it away."""
    claims = pods.claims(pod)
    if not claims:
        return
    if (pod.get("spec") or {}).get("schedulerName") != names.SCHEDULER:
        yield f"schedulerName is not {names.SCHEDULER}"
    if pods.labels(pod).get(names.LABEL_MANAGED) != "true":
        yield f"label {names.LABEL_MANAGED} is missing"
    for box in pods.boxes(pod):
        if box.name in claims and [amount for key, amount in box.amounts() if key == box.ticket] != ["1", "1"]:
            yield f"container {box.name} has no {box.ticket}"
    yield from exposed((*pods.boxes(pod), *pods.ephemeral(pod)), managed=True)


def exposed(found: tuple[pods.Box, ...], *, managed: bool) -> Iterator[str]:
    """Containers whose NVIDIA_VISIBLE_DEVICES is not void; in a managed pod it must be there."""
    for box in found:
        values = [entry.get("value") for entry in box.visible()]
        if any(value != pods.VOID for value in values) or (managed and not values):
            yield f"container {box.name}: {pods.VISIBLE} is not {pods.VOID}"
