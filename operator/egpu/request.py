"""What a claim asks for, once its keys have been understood."""

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from egpu import names, quantity
from egpu.types import WHOLE_CARD, Card, CardShare

GIB: Final = 1024**3
MIB: Final = 1024**2


class RequestError(ValueError):
    """A request that no card could serve; the message says what to write instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Amounts of each of ``count`` different cards of one node.

    Attributes:
        count: number of cards.
        core: percent of compute of each card; 0 where none is asked for.
        memory: bytes of each card, or None.
        memory_percent: percent of each card's memory, or None.
        tflops: compute of each card in TFLOPS, or None.
        precision: the figure of a card that ``tflops`` is measured against.
    """

    count: int = 1
    core: int = 0
    memory: int | None = None
    memory_percent: int | None = None
    tflops: Decimal | None = None
    precision: str = "fp32"

    def share_of(self, card: Card) -> CardShare | None:
        """What this request takes of a card, or None where the card's compute figure is unknown.

        Memory that is not asked for follows the core: 25 percent of a card brings 25 percent of its memory.
        """
        core = self._core_of(card)
        if core is None:
            return None
        # Asked for every card of every node at each filter call; what is built here needs no checking.
        return CardShare.model_construct(uuid=card.uuid, core=core, memory=self._memory_of(card, core))

    def _core_of(self, card: Card) -> int | None:
        if self.tflops is None:
            return self.core
        figure = card.tflops.get(self.precision)
        if not figure:
            return None
        exact = self.tflops * 100 / figure
        return int(exact) + (exact != int(exact))

    def _memory_of(self, card: Card, core: int) -> int:
        if self.memory is not None:
            return self.memory
        percent = self.memory_percent if self.memory_percent is not None else core
        return card.memory * percent // 100 // MIB * MIB if percent < 100 else card.memory


def parse_requests(requests: Mapping[str, int | str], *, provisioner: str, precision: str = "fp32") -> Request:
    """Understands the keys of a claim (or of a container's limits).

    Keys stand under ``elasticgpu.io`` or under the class's provisioner; under the latter a bare number of
    ``gpu-memory`` is GiB. The CRD's rules have refused what one object can decide; what is left here needs the class.

    Raises:
        RequestError: a foreign prefix, or an amount out of range.
    """
    found: dict[str, int | str] = {}
    prefixed: set[str] = set()
    for key, value in requests.items():
        prefix, _, name = key.rpartition("/")
        if prefix not in (names.GROUP, provisioner) or name not in names.REQUEST_KEYS:
            raise RequestError(f"{key} is not served by {provisioner}; write {names.GROUP}/{name or names.KEY_CORE}")
        if name in found:
            raise RequestError(f"{name} stands twice, under two prefixes; keep one of them")
        found[name] = value
        if prefix != names.GROUP:
            prefixed.add(name)
    return _build(found, bare_gib=names.KEY_MEMORY in prefixed, precision=precision)


def _build(found: Mapping[str, int | str], *, bare_gib: bool, precision: str) -> Request:
    core = _integer(found, names.KEY_CORE, 0)
    if (core > WHOLE_CARD and core % WHOLE_CARD) or core < 0 or (names.KEY_CORE in found and core == 0):
        raise RequestError(f"gpu-core {core} is not percent of one card; write 1 to 100, or 200, 300 … for whole cards")
    whole = core > WHOLE_CARD
    memory = _memory(found, bare_gib=bare_gib)
    percent = _integer(found, names.KEY_MEMORY_PERCENT, 0)
    tflops = found.get(names.KEY_TFLOPS)
    return Request(
        count=core // WHOLE_CARD if whole else _integer(found, names.KEY_COUNT, 1),
        core=WHOLE_CARD if whole else core,
        memory=memory,
        memory_percent=percent or None,
        tflops=quantity.parse_decimal(tflops) if tflops is not None else None,
        precision=precision,
    )


def _integer(found: Mapping[str, int | str], name: str, default: int) -> int:
    value = found.get(name, default)
    text = str(value).strip()
    if not text.isdigit():
        raise RequestError(f"{name} {value!r} is not a whole number; write {name}: 25")
    return int(text)


def _memory(found: Mapping[str, int | str], *, bare_gib: bool) -> int | None:
    value = found.get(names.KEY_MEMORY)
    if value is None:
        return None
    try:
        amount = quantity.parse(value)
    except quantity.QuantityError as error:
        raise RequestError(f"gpu-memory: {error}") from error
    if bare_gib and str(value).strip().isdigit():
        amount *= GIB
    if amount < MIB:
        raise RequestError(f"gpu-memory {value} is less than 1Mi; write 4Gi for four gibibytes")
    return amount
