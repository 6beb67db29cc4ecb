"""Quantities, read and written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egpu import quantity

GOOD = [
    ("4Gi", 4 * 1024**3),
    ("4096Mi", 4 * 1024**3),
    (1000, 1000),
    ("1k", 1000),
    ("1.5Gi", 3 * 512 * 1024**2),
    ("1e3", 1000),
    ("100m", 1),
]
BAD = ["", "4GiB", "-4Gi", "four", "4 Gi", "0x10", "1Ki2"]


@pytest.mark.parametrize(("text", "value"), GOOD)
def test_reads(text: int | str, value: int) -> None:
    assert quantity.parse(text) == value


@pytest.mark.parametrize("text", BAD)
def test_refuses_and_says_what_to_write(text: str) -> None:
    with pytest.raises(quantity.QuantityError, match="write a number with a unit, such as 4Gi"):
        quantity.parse(text)


@given(st.integers(min_value=0, max_value=2**60))
def test_what_is_written_reads_back(amount: int) -> None:
    assert quantity.parse(quantity.format_bytes(amount)) == amount


@pytest.mark.parametrize(("amount", "text"), [(2254857830, "2.1 GiB"), (4 * 1024**3, "4 GiB"), (12, "12 B")])
def test_messages_are_short(amount: int, text: str) -> None:
    assert quantity.human_bytes(amount) == text
