"""The objects of the API as frozen values.

Parsing (``parse``) is the edge: pydantic checks shape and turns quantities into integers. Inside, everything is frozen;
writing goes the other way by the small ``*_spec`` functions, which return what the API server is to store.
"""

from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from typing import Annotated, Any, Final, Self

from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from egpu import names, quantity

Bytes = Annotated[int, BeforeValidator(quantity.parse)]
"""An amount of memory in bytes, on the wire a quantity."""

WHOLE_CARD: Final = 100
"""Percent of a card's compute that make it exclusive."""


class ParseError(ValueError):
    """An object that does not have the shape its schema promises."""


class Phase(StrEnum):
    """Phases for people; no code decides by them."""

    PENDING = "Pending"
    BOUND = "Bound"
    LOST = "Lost"
    AVAILABLE = "Available"
    RELEASED = "Released"
    FAILED = "Failed"


class Reclaim(StrEnum):
    """What becomes of a slice whose claim is deleted."""

    DELETE = "Delete"
    RETAIN = "Retain"


class BindingMode(StrEnum):
    """When a claim's card is chosen."""

    WAIT = "WaitForFirstConsumer"
    IMMEDIATE = "Immediate"


class Isolation(StrEnum):
    """How a container is held to its slice."""

    LIBVGPU = "libvgpu"
    NONE = "none"


class Spread(StrEnum):
    """Preference within one tier of placement."""

    BINPACK = "binpack"
    SPREAD = "spread"


class Wire(BaseModel):
    """Base of everything read from the API server: frozen, camelCase outside, unknown fields passed over."""

    model_config = ConfigDict(
        frozen=True, extra="ignore", alias_generator=to_camel, populate_by_name=True, hide_input_in_errors=True
    )

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> Self:
        """The value of one object as the API server sent it.

        Raises:
            ParseError: naming the object, the field and the fault.
        """
        try:
            return cls.model_validate(raw)
        except ValidationError as error:
            meta = raw.get("metadata") or {}
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            raise ParseError(
                f"{raw.get('kind', cls.__name__)} {meta.get('name', '?')}: {where}: {first['msg']}"
            ) from error


class Meta(Wire):
    """The parts of an object's metadata that anything decides by."""

    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    finalizers: tuple[str, ...] = ()
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None

    @property
    def key(self) -> str:
        """``namespace/name``, or the name alone for a cluster-wide kind."""
        return f"{self.namespace}/{self.name}" if self.namespace else self.name

    @property
    def deleting(self) -> bool:
        """Whether deletion has been asked for."""
        return self.deletion_timestamp is not None


class Condition(Wire):
    """A standard condition."""

    type: str
    status: str
    reason: str
    message: str
    observed_generation: int = 0
    last_transition_time: datetime


class Placement(Wire):
    """A class's preferences: which node, and which card of it."""

    node: Spread = Spread.BINPACK
    card: Spread = Spread.BINPACK


class GPUClass(Wire):
    """An EGPUClass."""

    metadata: Meta
    provisioner: str = names.DEFAULT_PROVISIONER
    parameters: dict[str, str] = {}
    reclaim_policy: Reclaim = Reclaim.DELETE
    binding_mode: BindingMode = Field(
        default=BindingMode.WAIT, validation_alias=AliasChoices("egpuBindingMode", "binding_mode")
    )
    isolation: Isolation = Isolation.LIBVGPU
    placement: Placement = Placement()
    allow_resize: bool = False

    @property
    def is_default(self) -> bool:
        """Whether claims that name no class get this one."""
        return self.metadata.annotations.get(names.ANNOTATION_DEFAULT_CLASS) == "true"


class Match(Wire):
    """One of these, and none of those; empty means no wish."""

    any_of: tuple[str, ...] = Field(default=(), validation_alias=AliasChoices("in", "any_of"))
    none_of: tuple[str, ...] = Field(default=(), validation_alias=AliasChoices("notIn", "none_of"))


class LabelMatch(Match):
    """A wish about one node label."""

    key: str


class Selector(Wire):
    """A claim's wishes about cards and nodes."""

    model: Match = Match()
    uuid: Match = Match()
    node_labels: tuple[LabelMatch, ...] = ()


class Resources(Wire):
    """The requests of a claim, as written."""

    requests: dict[str, int | str] = {}


class ClaimSpec(Wire):
    """What a user asks for."""

    egpu_class_name: str | None = None
    egpu_name: str | None = None
    resources: Resources = Resources()
    selector: Selector = Selector()


class CardShare(Wire):
    """What a slice has of one card: percent of compute (0: none set aside, none limited) and bytes."""

    uuid: str
    core: int
    memory: Bytes


class ClaimStatus(Wire):
    """What the operator has found out and done about a claim."""

    phase: Phase | None = None
    egpu_name: str | None = None
    node: str | None = None
    cards: tuple[CardShare, ...] = ()
    observed_generation: int = 0
    conditions: tuple[Condition, ...] = ()


class Claim(Wire):
    """An ElasticGPUClaim."""

    metadata: Meta
    spec: ClaimSpec
    status: ClaimStatus = ClaimStatus()


class ClaimRef(Wire):
    """The claim a slice belongs to; without ``uid`` an admin's promise to a claim of that name."""

    namespace: str
    name: str
    uid: str = ""


class Consumer(Wire):
    """The pod that may use a slice now."""

    pod_uid: str = Field(validation_alias=AliasChoices("podUID", "pod_uid"), serialization_alias="podUID")
    pod_name: str
    pod_namespace: str
    containers: tuple[str, ...]
    releasing: bool = False


class SliceSpec(Wire):
    """What a slice is and whose it is."""

    node_name: str
    cards: tuple[CardShare, ...]
    egpu_class_name: str | None = None
    reclaim_policy: Reclaim = Reclaim.DELETE
    isolation: Isolation = Isolation.LIBVGPU
    claim_ref: ClaimRef | None = None
    consumer: Consumer | None = None


class SliceStatus(Wire):
    """Phase and conditions of a slice, and the agent's word about its last consumer."""

    phase: Phase | None = None
    released_pod_uid: str = Field(default="", validation_alias=AliasChoices("releasedPodUID", "released_pod_uid"))
    conditions: tuple[Condition, ...] = ()


class Slice(Wire):
    """An ElasticGPU."""

    metadata: Meta
    spec: SliceSpec
    status: SliceStatus = SliceStatus()


class Booking(Wire):
    """What one slice has booked of one card."""

    core: int
    memory: Bytes
    claim_uid: str = Field(default="", validation_alias=AliasChoices("claimUID", "claim_uid"))
    time: datetime


class CardBookings(Wire):
    """All bookings of one card; ``sequence`` counts its writes."""

    sequence: int
    slices: dict[str, Booking] = {}


class NodeCardsSpec(Wire):
    """The bookings of a node, by card UUID."""

    bookings: dict[str, CardBookings] = {}


class Card(Wire):
    """A card as its node's agent reports it."""

    uuid: str
    index: int = 0
    model: str
    memory: Bytes
    sm_count: int = 0
    compute_capability: str = ""
    tflops: dict[str, Decimal] = {}
    health: str = "Healthy"
    health_reason: str = ""
    pci_bus_id: str = Field(
        default="", validation_alias=AliasChoices("pciBusID", "pci_bus_id"), serialization_alias="pciBusID"
    )
    numa_node: int = -1
    links: tuple[str, ...] = ()

    @property
    def healthy(self) -> bool:
        """Whether new slices may be placed on it."""
        return self.health == "Healthy"


class NodeCardsStatus(Wire):
    """A node's cards and whether its agent stands."""

    cards: tuple[Card, ...] = ()
    driver_version: str = ""
    cuda_version: str = ""
    agent_version: str = ""
    agent_address: str = ""
    conditions: tuple[Condition, ...] = ()


class NodeCards(Wire):
    """An ElasticGPUNode."""

    metadata: Meta
    spec: NodeCardsSpec = NodeCardsSpec()
    status: NodeCardsStatus = NodeCardsStatus()


class Taint(Wire):
    """A taint of a node."""

    key: str
    effect: str = ""


class NodeSpec(Wire):
    """The parts of a node's spec that anything decides by."""

    unschedulable: bool = False
    taints: tuple[Taint, ...] = ()


class Node(Wire):
    """A Node, trimmed."""

    metadata: Meta
    spec: NodeSpec = NodeSpec()

    @property
    def out_of_service(self) -> bool:
        """Whether an admin has declared that nothing runs on it any more."""
        return any(taint.key == names.TAINT_OUT_OF_SERVICE for taint in self.spec.taints)

    @property
    def open(self) -> bool:
        """Whether claims may be placed on it without a pod that tolerates its taints."""
        return not self.spec.unschedulable and all(taint.effect == "PreferNoSchedule" for taint in self.spec.taints)


class ContainerWire(Wire):
    """A container of a pod, as far as anything decides by it."""

    name: str
    restart_policy: str | None = None


class PodSpec(Wire):
    """The parts of a pod's spec that anything decides by."""

    node_name: str = ""
    scheduler_name: str = ""
    containers: tuple[ContainerWire, ...] = ()
    init_containers: tuple[ContainerWire, ...] = ()


class PodStatus(Wire):
    """A pod's phase as kubelet reports it."""

    phase: str = ""
    reason: str = ""


class Pod(Wire):
    """A pod, trimmed."""

    metadata: Meta
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def ended(self) -> bool:
        """Whether no container of it will run again."""
        return self.status.phase in ("Succeeded", "Failed")

    @property
    def claims(self) -> dict[str, str]:
        """Container name → claim name, as its annotations say.

        In a pod with a single container the part after the slash may be any name
        (design: elastic-gpu's own example names none that exists).
        """
        prefix = names.ANNOTATION_CLAIM_PREFIX
        written = {k.removeprefix(prefix): v for k, v in self.metadata.annotations.items() if k.startswith(prefix)}
        everyone = [c.name for c in (*self.spec.init_containers, *self.spec.containers)]
        if len(everyone) == 1 and len(written) == 1:
            return {everyone[0]: next(iter(written.values()))}
        return written


def wire(value: Wire) -> dict[str, Any]:
    """A value as the API server stores it: camelCase, quantities in their shortest form, empty fields left out."""
    raw: dict[str, Any] = value.model_dump(mode="json", by_alias=True, exclude_none=True)
    return raw


def share_wire(share: CardShare) -> dict[str, Any]:
    """A card share as stored in slices and claims."""
    return {"uuid": share.uuid, "core": share.core, "memory": quantity.format_bytes(share.memory)}
