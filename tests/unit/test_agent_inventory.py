"""What the node says of itself: cards, their health, and whether the agent can serve them."""

from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from egpu import quantity
from egpu.types import Card, NodeCardsStatus
from egpu_agent import inventory, models
from egpu_agent.inventory import Observed, injects_cdi
from egpu_agent.providers.base import Fault, FaultKind, Reading

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
T4 = Card(uuid="GPU-a", index=0, model="Tesla T4", memory=15 << 30, tflops={"fp32": Decimal("8.1")})
H200 = Card(uuid="GPU-b", index=1, model="NVIDIA H200", memory=141 << 30, links=("GPU-c",))
BOTH = Reading(cards=(T4, H200), driver_version="570.1", cuda_version="12.8")


def _fault(code: int, age: float, uuid: str = "GPU-a", kind: FaultKind = FaultKind.XID) -> Fault:
    return Fault(uuid=uuid, kind=kind, code=code, time=NOW.timestamp() - age)


@pytest.mark.parametrize(
    ("observed", "healths"),
    [
        pytest.param({"readings": [BOTH]}, {"GPU-a": "", "GPU-b": ""}, id="all-well"),
        pytest.param({}, {}, id="nothing"),
        pytest.param(
            {"readings": [Reading(cards=(T4,), lost=("GPU-b",))], "before": [T4, H200]},
            {"GPU-a": "", "GPU-b": "does not answer"},
            id="lost",
        ),
        pytest.param(
            {"readings": [Reading(cards=(T4,), lost=("index 1",))], "before": [T4, H200]},
            {"GPU-a": "", "GPU-b": "does not answer"},
            id="lost-without-a-name",
        ),
        pytest.param({"readings": [Reading(cards=(T4,))], "before": [T4, H200]}, {"GPU-a": ""}, id="taken-out"),
        pytest.param(
            {"readings": [Reading(cards=(T4,))], "before": [T4, H200], "wanted": {"GPU-b"}},
            {"GPU-a": "", "GPU-b": "no longer on the node"},
            id="taken-out-under-a-slice",
        ),
        pytest.param(
            {"failures": [("DriverMissing", "no driver")], "before": [T4]}, {"GPU-a": "no driver"}, id="driver-went"
        ),
        pytest.param({"readings": [BOTH], "faults": [_fault(79, 5)]}, {"GPU-a": "XID 79", "GPU-b": ""}, id="xid"),
        pytest.param({"readings": [BOTH], "faults": [_fault(79, 500)]}, {"GPU-a": "", "GPU-b": ""}, id="xid-long-ago"),
        pytest.param({"readings": [BOTH], "faults": [_fault(43, 1)]}, {"GPU-a": "", "GPU-b": ""}, id="a-program's-xid"),
        pytest.param(
            {"readings": [BOTH], "faults": [_fault(0, 1, kind=FaultKind.DOUBLE_BIT_ECC)]},
            {"GPU-a": "double-bit ECC", "GPU-b": ""},
            id="ecc",
        ),
        pytest.param(
            {"readings": [BOTH], "before": [T4.model_copy(update={"health": "Unhealthy", "health_reason": "lost"})]},
            {"GPU-a": "", "GPU-b": ""},
            id="recovered",
        ),
    ],
)
def test_health_of_cards(observed: dict[str, Any], healths: dict[str, str]) -> None:
    found = {card.uuid: card for card in inventory.cards(Observed(**observed), now=NOW.timestamp())}
    assert set(found) == set(healths)
    for uuid, reason in healths.items():
        assert found[uuid].healthy is (not reason), uuid
        assert reason in found[uuid].health_reason


@pytest.mark.parametrize(
    ("observed", "status", "reason"),
    [
        pytest.param({"readings": [BOTH]}, True, "Ready", id="ready"),
        pytest.param({"failures": [("DriverMissing", "x")]}, False, "DriverMissing", id="no-driver"),
        pytest.param(
            {"failures": [("DriverFailed", "x")], "readings": [BOTH]}, True, "Ready", id="one-of-two-providers"
        ),
        pytest.param({"readings": [BOTH], "library_error": "x"}, False, "LibraryMissing", id="no-library"),
        pytest.param(
            {"readings": [BOTH], "runtime": "containerd://1.6.20"}, False, "RuntimeWithoutCDI", id="old-runtime"
        ),
        pytest.param({"readings": [BOTH], "runtime": "containerd://2.1.4"}, True, "Ready", id="new-runtime"),
        pytest.param({"readings": [BOTH], "leaving": True}, False, "AgentStopped", id="stopping"),
        pytest.param({"readings": [BOTH], "unregistered": ["a/b"]}, False, "PluginNotRegistered", id="unregistered"),
    ],
)
def test_ready(observed: dict[str, Any], status: bool, reason: str) -> None:  # noqa: FBT001
    assert inventory.ready(Observed(**observed))[:2] == (status, reason)


def test_nothing_new_is_nothing_to_write() -> None:
    first = inventory.status(Observed(readings=[BOTH], version="1"), now=NOW)
    later = datetime(2026, 5, 2, tzinfo=UTC)
    assert inventory.status(Observed(readings=[BOTH], version="1", status=first), now=later) == first
    assert NodeCardsStatus.model_validate(inventory.wire(first)) == first, "what is stored reads back as the same"


def test_wire_form() -> None:
    raw = inventory.wire(inventory.status(Observed(readings=[BOTH], version="1"), now=NOW))
    assert (raw["cardCount"], raw["memory"]) == (2, "156Gi")
    assert raw["cards"][0] == {
        "uuid": "GPU-a",
        "index": 0,
        "model": "Tesla T4",
        "memory": "15Gi",
        "smCount": 0,
        "tflops": {"fp32": "8.1"},
        "health": "Healthy",
        "numaNode": -1,
    }
    assert quantity.parse(raw["cards"][1]["memory"]) == 141 << 30


@pytest.mark.parametrize(
    ("runtime", "config", "injects"),
    [
        ("containerd://2.3.7", "", True),
        ("containerd://2.0.0-rc.1", "", True),
        ("containerd://2.1.0", "[plugins.'io.containerd.cri.v1.runtime']\nenable_cdi = false", False),
        ("containerd://1.7.28", "", False),
        ("containerd://1.7.28", "[plugins.'io.containerd.grpc.v1.cri']\nenable_cdi = true", True),
        ("containerd://1.7.1", "[plugins.'io.containerd.grpc.v1.cri']\nenable_cdi = true", False),
        ("containerd://2.1.0", "not toml [", True),
        ("cri-o://1.34.0", "", True),
    ],
)
def test_runtimes_that_inject_cdi(runtime: str, config: str, injects: bool) -> None:  # noqa: FBT001
    assert injects_cdi(runtime, config) is injects


@pytest.mark.parametrize(
    ("name", "fp32"),
    [
        ("Tesla T4", "8.1"),
        ("NVIDIA A10", "31.2"),
        ("NVIDIA A100-SXM4-80GB", "19.5"),
        ("NVIDIA H100 80GB HBM3", "67"),
        ("NVIDIA H100 PCIe", "51.2"),
        ("nvidia l40s", "91.6"),
        ("NVIDIA L4", "30.3"),
        ("NVIDIA Nonesuch 9000", None),
    ],
)
def test_figures_of_models(name: str, fp32: str | None) -> None:
    figures = models.tflops(models.load(Path("/nonexistent")), name)
    assert figures.get("fp32") == (Decimal(fp32) if fp32 else None)


def test_an_admin_adds_and_overrides_models(tmp_path: Path) -> None:
    extra = tmp_path / "models.yaml"
    extra.write_text(
        'models:\n- {match: "Nonesuch.*", tflops: {fp32: "500"}}\n- {match: "Tesla T4", tflops: {fp32: 7.5}}\n'
    )
    table = models.load(extra)
    assert models.tflops(table, "NVIDIA Nonesuch 9000") == {"fp32": Decimal(500)}
    assert models.tflops(table, "Tesla T4") == {"fp32": Decimal("7.5")}


@pytest.mark.parametrize(
    "text", ["models: [{match: '('}]", "models: 5", "a: [", "models: [{match: x, tflops: {fp32: many}}]"]
)
def test_a_broken_table_of_an_admin_costs_only_itself(
    tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    extra = tmp_path / "models.yaml"
    extra.write_text(text)
    assert models.tflops(models.load(extra), "Tesla T4") == {"fp32": Decimal("8.1"), "fp16": Decimal(65)}
    assert "passed over" in caplog.text


def test_a_booking_is_no_news_of_the_node() -> None:
    first = inventory.status(Observed(readings=[BOTH], generation=1), now=NOW)
    assert inventory.status(Observed(readings=[BOTH], status=first, generation=7), now=NOW) == first
