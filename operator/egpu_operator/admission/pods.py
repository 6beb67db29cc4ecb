"""A pod as the API server sends it for review, seen by its containers."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from egpu import names

JsonObject = Mapping[str, Any]

VISIBLE: Final = "NVIDIA_VISIBLE_DEVICES"
VOID: Final = "void"
"""The value by which NVIDIA's runtime leaves a container alone (nvidia-container-toolkit, ``image/cuda_image.go``)."""
DOMAIN_SUFFIX: Final = f".{names.GROUP}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """One container of a pod with the place it stands at.

    Attributes:
        kind: the list it stands in: ``containers``, ``initContainers`` or ``ephemeralContainers``.
        index: its place in that list.
        raw: the container.
    """

    kind: str
    index: int
    raw: JsonObject

    @property
    def name(self) -> str:
        """The container's name."""
        return str(self.raw.get("name") or "")

    @property
    def ordinary_init(self) -> bool:
        """Whether it runs to its end before the app's containers start (a sidecar does not)."""
        return self.kind == "initContainers" and self.raw.get("restartPolicy") != "Always"

    @property
    def ticket(self) -> str:
        """The resource that counts this container, should it have a claim."""
        return names.INIT_TICKET if self.ordinary_init else names.TICKET

    @property
    def path(self) -> str:
        """JSON pointer of the container."""
        return f"/spec/{self.kind}/{self.index}"

    def amounts(self) -> Iterator[tuple[str, Any]]:
        """Every resource asked for with its amount; limits first, then requests."""
        resources = self.raw.get("resources") or {}
        for part in ("limits", "requests"):
            yield from (resources.get(part) or {}).items()

    def visible(self) -> list[JsonObject]:
        """The entries that set NVIDIA_VISIBLE_DEVICES."""
        return [entry for entry in self.raw.get("env") or () if entry.get("name") == VISIBLE]


def boxes(pod: JsonObject) -> tuple[Box, ...]:
    """Init containers, then containers: those an annotation can name."""
    spec = pod.get("spec") or {}
    return tuple(
        Box(kind=kind, index=index, raw=raw)
        for kind in ("initContainers", "containers")
        for index, raw in enumerate(spec.get(kind) or ())
    )


def ephemeral(pod: JsonObject) -> tuple[Box, ...]:
    """The ephemeral containers."""
    found = (pod.get("spec") or {}).get("ephemeralContainers") or ()
    return tuple(Box(kind="ephemeralContainers", index=index, raw=raw) for index, raw in enumerate(found))


def fresh(pod: JsonObject, old: JsonObject) -> tuple[Box, ...]:
    """The ephemeral containers that an update adds; those that run cannot change."""
    before = {box.name for box in ephemeral(old)}
    return tuple(box for box in ephemeral(pod) if box.name not in before)


def annotations(pod: JsonObject) -> dict[str, str]:
    """The pod's annotations."""
    return dict((pod.get("metadata") or {}).get("annotations") or {})


def labels(pod: JsonObject) -> dict[str, str]:
    """The pod's labels."""
    return dict((pod.get("metadata") or {}).get("labels") or {})


def written(pod: JsonObject) -> dict[str, str]:
    """Claims by what stands after the slash of their annotation."""
    prefix = names.ANNOTATION_CLAIM_PREFIX
    return {key.removeprefix(prefix): value for key, value in annotations(pod).items() if key.startswith(prefix)}


def claims(pod: JsonObject) -> dict[str, str]:
    """Container name → claim name; the same reading as :attr:`egpu.types.Pod.claims`."""
    found, everyone = written(pod), boxes(pod)
    if len(everyone) == 1 and len(found) == 1:
        return {everyone[0].name: next(iter(found.values()))}
    return found


def protected(pod: JsonObject) -> dict[str, str]:
    """The annotations and the label that cannot change once the pod exists."""
    ours = (names.ANNOTATION_CLAIM_PREFIX, names.ANNOTATION_SLICE_PREFIX)
    marks = {f"annotation {key}": value for key, value in annotations(pod).items() if key.startswith(ours)}
    label = labels(pod).get(names.LABEL_MANAGED)
    return marks if label is None else {**marks, f"label {names.LABEL_MANAGED}": label}


def is_ours(resource: str) -> bool:
    """Whether a resource's domain is Elastic GPU's or below it."""
    domain = resource.partition("/")[0]
    return "/" in resource and (domain == names.GROUP or domain.endswith(DOMAIN_SUFFIX))
