"""A node's description: YAML in, checked objects out."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from gpusim.models import MIB, MODELS, Model

if TYPE_CHECKING:
    from pathlib import Path

MAX_CARDS: Final = 16
UUID_PATTERN: Final = r"^GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"
DEFAULT_NODE: Final = "node"
_NAMESPACE: Final = uuid.UUID("6d6b2c63-5a52-4f6c-8f5e-7f0f3d3f2b10")


class ConfigError(ValueError):
    """The description cannot be used; the message says what to write instead."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Driver(_Strict):
    """What the driver says of itself. `cuda` is major x 1000 + minor x 10."""

    version: str = "580.65.06"
    cuda: Annotated[int, Field(ge=11030, le=13990)] = 13000


class CardConfig(_Strict):
    """One card: a model and what differs from it.

    Attributes:
        model: a key of `gpusim.models.MODELS`.
        uuid: `GPU-...`; made of node name and index when left out.
        memory_mib: total as `nvidia-smi` prints it, MiB.
        context_bytes: what a context costs, bytes.
        module_bytes: what a loaded module costs, bytes.
    """

    model: str
    uuid: Annotated[str | None, Field(pattern=UUID_PATTERN)] = None
    memory_mib: Annotated[int | None, Field(gt=0)] = None
    reserved_mib: Annotated[int | None, Field(ge=0)] = None
    sm_count: Annotated[int | None, Field(gt=0)] = None
    context_bytes: Annotated[int, Field(ge=0)] = 256 * MIB
    module_bytes: Annotated[int, Field(ge=0)] = 2 * MIB
    numa_node: Annotated[int, Field(ge=0)] = 0

    @model_validator(mode="after")
    def _known_model(self) -> Self:
        if self.model not in MODELS:
            raise ValueError(f"model {self.model!r} is unknown; write one of {', '.join(sorted(MODELS))}")
        return self


class NodeConfig(_Strict):
    """The cards of one node."""

    cards: Annotated[list[CardConfig], Field(max_length=MAX_CARDS)]


class Config(_Strict):
    """The whole file: `cards` for any node, or `nodes` by name.

    Attributes:
        granule: bytes that device memory is handed out in. 2 MiB: small allocations of a process share blocks, as the
            real driver does; less: every allocation is rounded up by itself.
        sample_ms: period of utilisation samples.
        release_delay_ms: how long the memory of a dead process stays on the card.
    """

    driver: Driver = Driver()
    granule: Annotated[int, Field(ge=512, le=2 * MIB)] = 2 * MIB
    sample_ms: Annotated[int, Field(ge=10, le=10_000)] = 167
    release_delay_ms: Annotated[int, Field(ge=0, le=60_000)] = 0
    cards: list[CardConfig] | None = None
    nodes: dict[str, NodeConfig] | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if (self.cards is None) == (self.nodes is None):
            raise ValueError("write either `cards: [...]` or `nodes: {NAME: {cards: [...]}}`")
        if self.granule & (self.granule - 1):
            raise ValueError(f"granule {self.granule} is no power of two; write 512 or 2097152")
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A card with everything filled in."""

    index: int
    uuid: str
    model: Model
    memory_bytes: int
    reserved_bytes: int
    sm_count: int
    context_bytes: int
    module_bytes: int
    numa_node: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One node of the description. Figures as in `Config`."""

    name: str
    driver: Driver
    granule: int
    sample_ms: int
    release_delay_ms: int
    cards: tuple[Card, ...]


def load(path: Path, *, node: str | None = None) -> Node:
    """Read a description and resolve one node of it.

    Raises:
        ConfigError: the file cannot be read or is wrong.
    """
    try:
        raw = yaml.safe_load(path.read_text())
    except (OSError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: {error}") from error
    return parse(raw, node=node, where=str(path))


def parse(raw: object, *, node: str | None = None, where: str = "configuration") -> Node:
    """Check a description that is already a Python object and resolve one node of it.

    Raises:
        ConfigError: it is wrong, or has no such node.
    """
    try:
        config = Config.model_validate(raw)
    except ValidationError as error:
        lines = (f"{'.'.join(map(str, e['loc'])) or 'top level'}: {e['msg']}" for e in error.errors())
        raise ConfigError(f"{where}: {'; '.join(lines)}") from error
    name = node or DEFAULT_NODE
    cards = tuple(_card(name, i, card) for i, card in enumerate(_cards(config, name, where)))
    if len({card.uuid for card in cards}) != len(cards):
        raise ConfigError(f"{where}: node {name} has the same uuid twice; leave uuid out to have it made")
    return Node(
        name=name,
        driver=config.driver,
        granule=config.granule,
        sample_ms=config.sample_ms,
        release_delay_ms=config.release_delay_ms,
        cards=cards,
    )


def _cards(config: Config, name: str, where: str) -> list[CardConfig]:
    if config.cards is not None:
        return config.cards
    nodes = config.nodes or {}
    if name not in nodes:
        raise ConfigError(f"{where}: no node {name!r}; write --node with one of {', '.join(sorted(nodes))}")
    return nodes[name].cards


def card_uuid(node: str, index: int) -> str:
    """The UUID of a card whose description has none: always the same for a node's name and an index."""
    return f"GPU-{uuid.uuid5(_NAMESPACE, f'{node}/{index}')}"


def _card(node: str, index: int, card: CardConfig) -> Card:
    model = MODELS[card.model]
    return Card(
        index=index,
        uuid=card.uuid or card_uuid(node, index),
        model=model,
        memory_bytes=(card.memory_mib or model.memory_mib) * MIB,
        reserved_bytes=(model.reserved_mib if card.reserved_mib is None else card.reserved_mib) * MIB,
        sm_count=card.sm_count or model.sm_count,
        context_bytes=card.context_bytes,
        module_bytes=card.module_bytes,
        numa_node=card.numa_node,
    )
