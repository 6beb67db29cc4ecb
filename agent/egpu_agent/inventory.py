"""What the node has: cards, their health, and whether the agent can serve them. Pure."""

import re
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from egpu import conditions, quantity, reasons
from egpu.types import Card, NodeCardsStatus
from egpu_agent.providers.base import Fault, FaultKind, Reading

APPLICATION_XIDS: Final = frozenset((13, 31, 43, 45, 68, 109))
"""XIDs that a program causes and that leave the card sound; those that NVIDIA's device plug-in passes over."""

MODELS_LENGTH: Final = 1024
"""Characters that the schema leaves to the summary of models."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """Everything the node's status is decided from.

    Attributes:
        readings: what each provider read.
        failures: reason and message of providers that could not.
        before: the cards as last published.
        wanted: UUIDs that slices or bookings still name.
        faults: reports of drivers, newest last.
        unregistered: ticket resources that kubelet does not hold.
        runtime: the runtime's version as the Node says, or "".
        runtime_config: the text of containerd's configuration, or "".
        library_error: why the library could not be installed, or "".
        leaving: the agent is stopping.
        version: of the agent.
        address: of the agent's readiness probe, or "".
        xid_hold: seconds a card is unhealthy after a critical XID, if it answers all the while.
    """

    readings: Sequence[Reading] = ()
    failures: Sequence[tuple[str, str]] = ()
    before: Sequence[Card] = ()
    wanted: Collection[str] = frozenset()
    faults: Sequence[Fault] = ()
    unregistered: Sequence[str] = ()
    runtime: str = ""
    runtime_config: str = ""
    library_error: str = ""
    leaving: bool = False
    version: str = ""
    address: str = ""
    xid_hold: float = 120.0
    status: NodeCardsStatus = field(default_factory=NodeCardsStatus)
    generation: int = 0


def cards(observed: Observed, *, now: float) -> tuple[Card, ...]:
    """The cards: those read, those that do not answer, and those that went while slices still name them."""
    answering = (card for reading in observed.readings for card in reading.cards)
    read = {card.uuid: _with_faults(card, observed, now) for card in answering}
    lost = {uuid for reading in observed.readings for uuid in reading.lost}
    lost_indices = {int(name.removeprefix("index ")) for name in lost if name.startswith("index ")}
    for card in observed.before:
        if card.uuid in read:
            continue
        if card.uuid in lost or (card.index in lost_indices and card.index not in {c.index for c in read.values()}):
            read[card.uuid] = _unhealthy(card, reasons.card_lost(card.uuid))
        elif observed.failures:
            read[card.uuid] = _unhealthy(card, observed.failures[0][1])
        elif card.uuid in observed.wanted:
            read[card.uuid] = _unhealthy(card, reasons.card_gone(card.uuid))
    return tuple(sorted(read.values(), key=lambda card: (card.index, card.uuid)))


def ready(observed: Observed) -> tuple[bool, str, str]:
    """Status, reason and message of the node's condition Ready: the first thing that is wrong."""
    if observed.leaving:
        return False, reasons.AGENT_STOPPED, reasons.agent_stopped()
    if observed.failures and not observed.readings:
        reason, message = observed.failures[0]
        return False, reason, message
    if observed.library_error:
        return False, reasons.LIBRARY_MISSING, observed.library_error
    if observed.runtime and not injects_cdi(observed.runtime, observed.runtime_config):
        return False, reasons.RUNTIME_WITHOUT_CDI, reasons.runtime_without_cdi(observed.runtime)
    if observed.unregistered:
        return False, reasons.NOT_REGISTERED, reasons.not_registered(", ".join(observed.unregistered))
    return True, reasons.NODE_READY, "the agent serves this node's cards"


def status(observed: Observed, *, now: datetime) -> NodeCardsStatus:
    """The node's status; equal to the one there is where nothing changed.

    It says nothing about the spec, which changes with every booking: the generation it speaks of stays the first one.
    """
    good, reason, message = ready(observed)
    before = conditions.find(observed.status.conditions, reasons.READY)
    merged = conditions.merge(
        observed.status.conditions,
        kind=reasons.READY,
        status=good,
        reason=reason,
        message=message,
        generation=before.observed_generation if before else observed.generation,
        now=now.replace(microsecond=0),
    )
    first = next(iter(observed.readings), Reading())
    return NodeCardsStatus(
        cards=cards(observed, now=now.timestamp()),
        driver_version=first.driver_version,
        cuda_version=first.cuda_version,
        agent_version=observed.version,
        agent_address=observed.address,
        conditions=merged,
    )


def wire(value: NodeCardsStatus) -> dict[str, Any]:
    """A status as the API server stores it."""
    total = sum(card.memory for card in value.cards)
    address = {"agentAddress": value.agent_address} if value.agent_address else {}
    return {
        **address,
        "cardCount": len(value.cards),
        "models": ", ".join(dict.fromkeys(card.model for card in value.cards))[:MODELS_LENGTH],
        "memory": quantity.format_bytes(total),
        "driverVersion": value.driver_version,
        "cudaVersion": value.cuda_version,
        "agentVersion": value.agent_version,
        "cards": [_card_wire(card) for card in value.cards],
        "conditions": conditions.to_wire(value.conditions),
    }


def injects_cdi(runtime: str, config: str) -> bool:
    """Whether a runtime (``containerd://2.1.4``, as ``status.nodeInfo`` names it) resolves CDI devices.

    containerd reads them from 1.7.2 on if ``enable_cdi`` is set, from 2.0 on unless it is unset; other runtimes that
    kubelet 1.34 works with do so by themselves.
    """
    name, _, version = runtime.partition("://")
    if name != "containerd":
        return True
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:3])
    switch = _enable_cdi(config)
    if numbers >= (2, 0):
        return switch is not False
    return numbers >= (1, 7, 2) and switch is True


def _enable_cdi(config: str) -> bool | None:
    try:
        plugins: Mapping[str, Any] = tomllib.loads(config).get("plugins", {})
    except tomllib.TOMLDecodeError:
        return None
    for name in ("io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri"):
        section = plugins.get(name, {})
        if isinstance(section, dict) and "enable_cdi" in section:
            return bool(section["enable_cdi"])
    return None


def _with_faults(card: Card, observed: Observed, now: float) -> Card:
    hold = observed.xid_hold
    recent = [fault for fault in observed.faults if fault.uuid == card.uuid and now - fault.time < hold]
    grave = [fault for fault in recent if fault.kind is not FaultKind.XID or fault.code not in APPLICATION_XIDS]
    if not grave:
        return card
    last = grave[-1]
    what = f"XID {last.code}" if last.kind is FaultKind.XID else "a double-bit ECC error"
    return _unhealthy(card, f"the driver reported {what}; healthy again after {hold:.0f} s without another")


def _unhealthy(card: Card, why: str) -> Card:
    return card.model_copy(update={"health": "Unhealthy", "health_reason": why})


def _card_wire(card: Card) -> dict[str, Any]:
    raw: dict[str, Any] = card.model_dump(mode="json", by_alias=True)
    raw["memory"] = quantity.format_bytes(card.memory)
    raw["tflops"] = {precision: str(figure) for precision, figure in card.tflops.items()}
    return {key: value for key, value in raw.items() if value not in ("", {}, [])}
