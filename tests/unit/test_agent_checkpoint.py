"""The agent's checkpoint: what it keeps through restarts, up- and downgrades, and breakage."""

import asyncio
import json
from pathlib import Path

import pytest

from egpu.types import CardShare, Isolation
from egpu_agent import checkpoint
from egpu_agent.checkpoint import Attachment, CheckpointError, Store, Ticket, decode, encode

ATTACHMENT = Attachment(
    sliceUID="slice-uid",
    podUID="pod-uid",
    slice_name="egpu-1",
    pod_namespace="default",
    pod_name="trainer",
    container="main",
    isolation=Isolation.LIBVGPU,
    cards=(CardShare(uuid="GPU-1", core=25, memory=4 << 30),),
)
TICKETS = {
    "a1": Ticket(nonce="a1", resource="elasticgpu.io/slice", ids=("slice-1",), time=5.0),
    "b2": Ticket(
        nonce="b2", resource="elasticgpu.io/init-slice", ids=("init-slice-0",), time=6.0, attachment=ATTACHMENT
    ),
}


def _file(*, version: int = 1, oldest: int = 1, change: dict[str, object] | None = None) -> bytes:
    raw = json.loads(encode(TICKETS.values()))
    raw["data"] |= change or {}
    raw |= {"version": version, "readableFrom": oldest, "checksum": checkpoint._checksum(raw["data"])}
    return json.dumps(raw).encode()


def test_reads_what_it_wrote() -> None:
    assert decode(encode(TICKETS.values())) == TICKETS


def test_reads_a_newer_version_that_says_it_can_be_read() -> None:
    raw = json.loads(_file(version=7, oldest=1, change={"leases": [1, 2]}))
    raw["data"]["tickets"][0]["colour"] = "green"
    raw["checksum"] = checkpoint._checksum(raw["data"])
    assert decode(json.dumps(raw).encode()) == TICKETS


def test_upgrades_an_older_version_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    old = json.loads(_file())
    old["data"] = {"rows": old["data"]["tickets"]}
    old["checksum"] = checkpoint._checksum(old["data"])
    monkeypatch.setattr(checkpoint, "VERSION", 3)
    monkeypatch.setitem(checkpoint.UPGRADES, 1, lambda data: {"lines": data["rows"]})
    monkeypatch.setitem(checkpoint.UPGRADES, 2, lambda data: {"tickets": data["lines"]})
    assert decode(json.dumps(old).encode()) == TICKETS


@pytest.mark.parametrize(
    ("content", "says"),
    [
        pytest.param(_file(version=9, oldest=2), "readable from 2", id="too-new"),
        pytest.param(encode(TICKETS.values())[:-40], "JSONDecodeError", id="cut-short"),
        pytest.param(encode(TICKETS.values()).replace(b"trainer", b"trained"), "checksum", id="one-word-changed"),
        pytest.param(b"", "JSONDecodeError", id="empty"),
        pytest.param(b"[]", "TypeError", id="another-shape"),
        pytest.param(b"\xff\xfe\x00", "UnicodeDecodeError", id="not-text"),
        pytest.param(_file(change={"tickets": [{"nonce": "x"}]}), "resource", id="a-field-missing"),
    ],
)
def test_refuses_what_it_cannot_trust(content: bytes, says: str) -> None:
    with pytest.raises(CheckpointError, match=says):
        decode(content)


async def test_broken_file_is_set_aside_and_rebuilt(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "state" / "checkpoint.json"
    path.parent.mkdir()
    path.write_bytes(b"{half")
    store = Store(path=path)
    store.load(lambda: TICKETS)
    assert store.tickets == TICKETS
    assert path.with_suffix(".broken").read_bytes() == b"{half"
    assert "cannot be used" in caplog.text
    await store.drop(["a1"])
    assert decode(path.read_bytes()) == {"b2": TICKETS["b2"]}


async def test_every_change_is_on_disk_when_its_call_returns(tmp_path: Path) -> None:
    store = Store(path=tmp_path / "checkpoint.json")

    async def put(number: int) -> None:
        nonce = f"n{number}"
        await store.put(Ticket(nonce=nonce, resource="elasticgpu.io/slice", ids=(f"slice-{number}",)))
        assert nonce in decode(store.path.read_bytes())

    await asyncio.gather(*(put(number) for number in range(40)))
    assert len(decode(store.path.read_bytes())) == 40


async def test_a_failed_write_is_made_up_for_by_the_next(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    store = Store(path=folder / "checkpoint.json")
    with pytest.raises(OSError, match="No such file"):
        await store.put(TICKETS["a1"])
    folder.mkdir()
    await store.put(TICKETS["b2"])
    assert decode(store.path.read_bytes()) == TICKETS


def test_leftovers_of_a_writer_that_died_are_removed(tmp_path: Path) -> None:
    leftover = tmp_path / ".checkpoint.json.12345678.tmp"
    leftover.write_bytes(b"half")
    Store(path=tmp_path / "checkpoint.json").load(dict)
    assert not leftover.exists()
