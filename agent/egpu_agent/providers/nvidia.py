"""NVIDIA cards: read by NVML, reached by the container toolkit's CDI spec or else its runtime."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from egpu import reasons
from egpu.types import Card
from egpu_agent import cdi, models, nvml
from egpu_agent.providers.base import CardProcess, DeviceEdits, Fault, FaultKind, ProviderError, Reading

CORES: Final = 128
CORES_OF: Final = {"6.0": 64, "7.0": 64, "7.2": 64, "7.5": 64, "8.0": 64}
"""FP32 cores of a multiprocessor by compute capability, where it isn't 128 (CUDA C++ Programming Guide)."""


class Nvidia:
    """The cards of the NVIDIA driver. It may be installed, and go, while the agent runs."""

    name = "nvidia"

    def __init__(
        self,
        *,
        roots: Sequence[Path],
        toolkit: tuple[Path, ...],
        extra_models: Path,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._roots = roots
        self._toolkit = toolkit
        self._extra_models = extra_models
        self._clock = clock
        self._nvml: nvml.Nvml | None = None
        self._events: nvml.Events | None = None
        self._watched: frozenset[str] = frozenset()

    def read(self) -> Reading:
        """The cards now, a card with uncorrected ECC errors as unhealthy."""
        try:
            driver = self._driver()
            facts, lost = driver.cards()
            version, cuda = driver.versions()
        except nvml.NvmlError as error:
            raise self._failed(error) from error
        table = models.load(self._extra_models)
        addresses = {_address(fact.pci_bus_id): fact.uuid for fact in facts}
        cards = tuple(_card(fact, table, addresses) for fact in facts)
        self._watch({fact.uuid for fact in facts})
        return Reading(cards=cards, lost=tuple(lost), driver_version=version, cuda_version=cuda)

    def wait(self, seconds: float) -> tuple[Fault, ...]:
        """Reports of the driver; where it has none to give, simply the time passes."""
        events = self._events
        if events is None:
            time.sleep(seconds)
            return ()
        try:
            event = events.wait(seconds)
        except nvml.NvmlError:
            time.sleep(seconds)
            return ()
        if event is None:
            return ()
        kind = FaultKind.XID if event.kind == nvml.XID else FaultKind.DOUBLE_BIT_ECC
        return (Fault(uuid=event.uuid, kind=kind, code=event.data, time=self._clock()),)

    def processes(self, uuids: Sequence[str]) -> tuple[CardProcess, ...]:
        """Everything NVML lists on the cards."""
        found: list[CardProcess] = []
        try:
            driver = self._driver()
        except nvml.NvmlError as error:
            raise self._failed(error) from error
        for uuid in uuids:
            try:
                listed = driver.processes(uuid)
            except nvml.CardLost:
                continue
            except nvml.NvmlError as error:
                raise self._failed(error) from error
            found.extend(CardProcess(uuid=uuid, pid=pid, memory=memory) for pid, memory in listed)
        return tuple(found)

    def edits(self, cards: Sequence[Card]) -> DeviceEdits:
        """The toolkit's edits for these very cards; on a node without its spec, the variable its runtime goes by."""
        specs = cdi.read_toolkit(self._toolkit)
        found = cdi.toolkit_edits(specs, cards)
        uuids = ",".join(card.uuid for card in cards)
        if found is not None:
            return DeviceEdits(edits=found[0], version=found[1])
        if specs:
            raise ProviderError(reasons.card_not_in_toolkit(uuids), reason=reasons.DRIVER_FAILED)
        return DeviceEdits(edits={"env": [f"NVIDIA_VISIBLE_DEVICES={uuids}"]}, version="0.3.0")

    def _driver(self) -> nvml.Nvml:
        if self._nvml is None:
            self._nvml = nvml.Nvml.open(self._roots)
        return self._nvml

    def _failed(self, error: nvml.NvmlError) -> ProviderError:
        missing = isinstance(error, nvml.DriverMissing)
        if missing:
            self._nvml = None
        return ProviderError(str(error), reason=reasons.DRIVER_MISSING if missing else reasons.DRIVER_FAILED)

    def _watch(self, uuids: set[str]) -> None:
        """A new set of cards is a new set of events; the old set is left to the waiting thread that may be in it."""
        if self._watched == uuids and self._events is not None:
            return
        try:
            self._events = nvml.Events(sorted(uuids))
        except nvml.NvmlError:
            self._events = None
        self._watched = frozenset(uuids)


def _card(fact: nvml.CardFacts, table: tuple[models.Model, ...], addresses: dict[tuple[int, str], str]) -> Card:
    bad = f"{fact.ecc_errors} uncorrected ECC errors since the driver was loaded; reset the card"
    links = (addresses.get(_address(peer)) for peer in fact.peers)
    return Card(
        uuid=fact.uuid,
        index=fact.index,
        model=fact.model,
        memory=fact.memory,
        sm_count=fact.cores // CORES_OF.get(fact.compute_capability, CORES),
        compute_capability=fact.compute_capability,
        tflops=models.tflops(table, fact.model),
        health="Unhealthy" if fact.ecc_errors else "Healthy",
        health_reason=bad if fact.ecc_errors else "",
        pci_bus_id=fact.pci_bus_id,
        numa_node=fact.numa_node,
        links=tuple(sorted({uuid for uuid in links if uuid and uuid != fact.uuid})),
    )


def _address(bus_id: str) -> tuple[int, str]:
    """A PCI address whose domain may be written with four or with eight digits."""
    domain, _, rest = bus_id.lower().partition(":")
    return (int(domain, 16), rest) if rest else (0, bus_id)
