"""Kubernetes quantities as exact integers.

The grammar is that of ``resource.Quantity`` (https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/):
a decimal number with a binary (``Ki``..``Ei``) or decimal (``n``..``E``) suffix or an exponent.
"""

import re
from decimal import Decimal
from typing import Final

_PATTERN: Final = re.compile(r"^\+?(\d+(?:\.\d*)?|\.\d+)(?:([KMGTPE]i)|([numkMGTPE])|[eE]([+-]?\d{1,3}))?$")
_BINARY: Final[dict[str, int]] = {
    unit: 1024**power for power, unit in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), start=1)
}
_DECIMAL: Final[dict[str, Decimal]] = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    **{unit: Decimal(1).scaleb(3 * power) for power, unit in enumerate("kMGTPE", start=1)},
}


class QuantityError(ValueError):
    """A text that is no quantity; the message says what to write instead."""


def parse_decimal(value: int | str) -> Decimal:
    """The exact value of a quantity, in units.

    Raises:
        QuantityError: the text does not follow the grammar, or is negative.
    """
    match = _PATTERN.match(str(value).strip())
    if match is None:
        raise QuantityError(f"{value!r} is not a quantity: write a number with a unit, such as 4Gi or 4096Mi")
    number, binary, decimal, exponent = match.groups()
    if binary:
        return Decimal(number) * Decimal(_BINARY[binary])
    if decimal:
        return Decimal(number) * _DECIMAL[decimal]
    return Decimal(number).scaleb(int(exponent or 0))


def parse(value: int | str) -> int:
    """A quantity rounded up to a whole number, as Kubernetes' ``Quantity.Value`` rounds.

    Raises:
        QuantityError: as :func:`parse_decimal`.
    """
    exact = parse_decimal(value)
    whole = int(exact)
    return whole if whole == exact else whole + 1


def format_bytes(amount: int) -> str:
    """The shortest exact binary form: 4294967296 → ``4Gi``, 1000 → ``1000``."""
    for unit, factor in reversed(_BINARY.items()):
        if amount >= factor and amount % factor == 0:
            return f"{amount // factor}{unit}"
    return str(amount)


def human_bytes(amount: int) -> str:
    """A rounded form for messages: 2254857830 → ``2.1 GiB``."""
    for unit, factor in reversed(_BINARY.items()):
        if amount >= factor:
            return f"{amount / factor:.1f} {unit}B".replace(".0 ", " ")
    return f"{amount} B"
