"""What a claim's keys mean, and what they take of a card."""

from decimal import Decimal

import pytest

from egpu.names import DEFAULT_PROVISIONER
from egpu.request import GIB, MIB, Request, RequestError, parse_requests
from egpu.types import Card, CardShare

OWN = "elasticgpu.io"
T4 = Card(uuid="GPU-t4", model="Tesla T4", memory=15360 * MIB, tflops={"fp32": Decimal("8.1")})
ODD = Card(uuid="GPU-odd", model="Nobody's", memory=16 * GIB)

READS = {
    "core and memory": ({f"{OWN}/gpu-core": 10, f"{OWN}/gpu-memory": "4Gi"}, Request(core=10, memory=4 * GIB)),
    "prefixed bare memory is GiB": (
        {f"{DEFAULT_PROVISIONER}/gpu-core": 10, f"{DEFAULT_PROVISIONER}/gpu-memory": 4},
        Request(core=10, memory=4 * GIB),
    ),
    "prefixed text is GiB too": ({f"{DEFAULT_PROVISIONER}/gpu-memory": "4"}, Request(memory=4 * GIB)),
    "prefixed with a unit": ({f"{DEFAULT_PROVISIONER}/gpu-memory": "512Mi"}, Request(memory=512 * MIB)),
    "whole cards": ({f"{OWN}/gpu-core": 200}, Request(count=2, core=100)),
    "count": ({f"{OWN}/gpu-core": "50", f"{OWN}/gpu-count": "2"}, Request(count=2, core=50)),
    "percent": ({f"{OWN}/gpu-memory-percent": 50}, Request(memory_percent=50)),
    "tflops": ({f"{OWN}/gpu-tflops": "2.5"}, Request(tflops=Decimal("2.5"))),
}

REFUSES = {
    "foreign prefix": ({"acme.com/gpu-core": 10}, "not served by"),
    "twice": ({f"{OWN}/gpu-core": 10, f"{DEFAULT_PROVISIONER}/gpu-core": 10}, "twice"),
    "150 percent": ({f"{OWN}/gpu-core": 150}, "write 1 to 100, or 200, 300"),
    "zero": ({f"{OWN}/gpu-core": 0}, "write 1 to 100"),
    "fraction": ({f"{OWN}/gpu-core": "10.5"}, "whole number"),
    "tiny memory": ({f"{OWN}/gpu-memory": 4}, "write 4Gi"),
    "malformed memory": ({f"{OWN}/gpu-memory": "4GB!"}, "such as 4Gi"),
}

TAKES = {
    "amounts as asked": (Request(core=10, memory=4 * GIB), T4, (10, 4 * GIB)),
    "memory follows core": (Request(core=25), T4, (25, 3840 * MIB)),
    "whole card, whole memory": (Request(core=100), T4, (100, T4.memory)),
    "percent of this card": (Request(memory_percent=50), T4, (0, 7680 * MIB)),
    "tflops rounds up": (Request(tflops=Decimal("4.1"), memory=GIB), T4, (51, GIB)),
    "unknown model never fits tflops": (Request(tflops=Decimal(1)), ODD, None),
}


@pytest.mark.parametrize(("keys", "request_"), READS.values(), ids=READS)
def test_reads(keys: dict[str, int | str], request_: Request) -> None:
    assert parse_requests(keys, provisioner=DEFAULT_PROVISIONER) == request_


@pytest.mark.parametrize(("keys", "words"), REFUSES.values(), ids=REFUSES)
def test_refuses_with_what_to_write(keys: dict[str, int | str], words: str) -> None:
    with pytest.raises(RequestError, match=words):
        parse_requests(keys, provisioner=DEFAULT_PROVISIONER)


@pytest.mark.parametrize(("request_", "card", "share"), TAKES.values(), ids=TAKES)
def test_takes_of_a_card(request_: Request, card: Card, share: tuple[int, int] | None) -> None:
    expected = None if share is None else CardShare(uuid=card.uuid, core=share[0], memory=share[1])
    assert request_.share_of(card) == expected
