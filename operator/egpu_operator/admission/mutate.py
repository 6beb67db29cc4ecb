"""What admission adds to a pod; nothing that was there before is lost, and doing it twice is doing it once."""

from collections.abc import Iterable, Iterator
from typing import Any, Final

from egpu import names
from egpu_operator.admission import messages, pods
from egpu_operator.admission.pods import Box, JsonObject

Operation = dict[str, Any]
ESCAPED_LABEL: Final = names.LABEL_MANAGED.replace("~", "~0").replace("/", "~1")


def pod(raw: JsonObject) -> tuple[Operation, ...]:
    """The JSON patch of a new pod that broke no rule."""
    claims = pods.claims(raw)
    everyone = pods.boxes(raw)
    if not claims:
        return tuple(void(everyone, managed=False))
    tickets = (ticket(box) for box in everyone if box.name in claims)
    return (*_marks(raw), *(op for ops in tickets for op in ops), *void(everyone, managed=True))


def ephemeral(raw: JsonObject, old: JsonObject) -> tuple[Operation, ...]:
    """The JSON patch of the ephemeral containers that an update adds."""
    return tuple(void(pods.fresh(raw, old), managed=names.LABEL_MANAGED in pods.labels(raw)))


def _marks(raw: JsonObject) -> Iterator[Operation]:
    labels = pods.labels(raw)
    if not labels:
        yield _put("/metadata/labels", {names.LABEL_MANAGED: "true"})
    elif labels.get(names.LABEL_MANAGED) != "true":
        yield _put(f"/metadata/labels/{ESCAPED_LABEL}", "true")
    if (raw.get("spec") or {}).get("schedulerName") != names.SCHEDULER:
        yield _put("/spec/schedulerName", names.SCHEDULER)


def ticket(box: Box) -> Iterator[Operation]:
    """One ticket in limits and requests, as extended resources want it."""
    resources = dict(box.raw.get("resources") or {})
    wanted = {part: {**(resources.get(part) or {}), box.ticket: "1"} for part in ("limits", "requests")}
    if {**resources, **wanted} != resources:
        yield _put(f"{box.path}/resources", {**resources, **wanted})


def void(found: Iterable[Box], *, managed: bool) -> Iterator[Operation]:
    """NVIDIA_VISIBLE_DEVICES set to void where it is set, and in a managed pod everywhere.

    An image may set the variable itself, so in a managed pod each container gets it.
    """
    for box in found:
        mine = box.visible()
        if (not mine and not managed) or mine == [{"name": pods.VISIBLE, "value": pods.VOID}]:
            continue
        others = [entry for entry in box.raw.get("env") or () if entry.get("name") != pods.VISIBLE]
        yield _put(f"{box.path}/env", [*others, {"name": pods.VISIBLE, "value": pods.VOID}])


def warnings(found: Iterable[Box], claimed: Iterable[str]) -> Iterator[str]:
    """What a user should know about the containers as they were written."""
    users = set(claimed)
    for box in found:
        if any(entry.get("value") != pods.VOID for entry in box.visible()):
            yield messages.visible_devices(box.name)
        if box.name in users and (box.raw.get("securityContext") or {}).get("privileged"):
            yield messages.privileged(box.name)


def _put(path: str, value: object) -> Operation:
    return {"op": "add", "path": path, "value": value}
