"""Kubelet's device manager checkpoint, in the form kubelet 1.36 writes it."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from egpu_agent.kubelet import Entry, KubeletError, holders, nonce_of, parse_checkpoint, read_checkpoint
from egpu_agent.proto import deviceplugin_pb2 as pb

POD = "6f0e2f9e-0c9c-4b43-9b6b-7d2f2f6f7f10"


def _answer(*names: str) -> str:
    response = pb.ContainerAllocateResponse(cdi_devices=[pb.CDIDevice(name=name) for name in names])
    return base64.b64encode(response.SerializeToString()).decode()


def _entry(**change: Any) -> dict[str, Any]:
    usual = {
        "PodUID": POD,
        "ContainerName": "main",
        "ResourceName": "elasticgpu.io/slice",
        "DeviceIDs": {"-1": ["slice-4"]},
        "AllocResp": _answer("elasticgpu.io/slice=0a1b"),
    }
    return usual | change


def _file(*entries: dict[str, Any]) -> bytes:
    data = {"PodDeviceEntries": list(entries) or None, "RegisteredDevices": {"elasticgpu.io/slice": ["slice-4"]}}
    return json.dumps({"Data": data, "Checksum": 1234567}).encode()


def _expected(**change: Any) -> Entry:
    usual = {
        "pod_uid": POD,
        "container": "main",
        "resource": "elasticgpu.io/slice",
        "ids": frozenset(["slice-4"]),
        "nonce": "0a1b",
    }
    return Entry(**(usual | change))


@pytest.mark.parametrize(
    ("content", "entries"),
    [
        pytest.param(_file(), (), id="nothing-given"),
        pytest.param(_file(_entry()), (_expected(),), id="one"),
        pytest.param(_file(_entry(ResourceName="nvidia.com/gpu")), (), id="another-plug-in's"),
        pytest.param(
            _file(_entry(DeviceIDs={"0": ["slice-4"], "1": ["slice-9"]})),
            (_expected(ids=frozenset(["slice-4", "slice-9"])),),
            id="ids-over-numa-nodes",
        ),
        pytest.param(_file(_entry(DeviceIDs=["slice-4"])), (_expected(),), id="ids-as-before-1.20"),
        pytest.param(_file(_entry(DeviceIDs=None)), (_expected(ids=frozenset()),), id="no-ids"),
        pytest.param(_file(_entry(AllocResp=None)), (_expected(nonce=None),), id="no-answer"),
        pytest.param(_file(_entry(AllocResp=_answer("vendor.com/x=1"))), (_expected(nonce=None),), id="foreign-answer"),
        pytest.param(
            _file(_entry(AllocResp=_answer("vendor.com/x=1", "elasticgpu.io/slice=ff"))),
            (_expected(nonce="ff"),),
            id="ours-among-others",
        ),
    ],
)
def test_parses(content: bytes, entries: tuple[Entry, ...]) -> None:
    assert parse_checkpoint(content) == entries


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"[]",
        b'{"Data": {"PodDeviceEntries": [{}]}}',
        _file(_entry(AllocResp="////")),
        _file(_entry())[:-30],
    ],
)
def test_an_unknown_form_is_an_error_and_never_a_guess(content: bytes) -> None:
    with pytest.raises(KubeletError, match="unknown form"):
        parse_checkpoint(content)


def test_without_a_file_nothing_was_given(tmp_path: Path) -> None:
    assert read_checkpoint(tmp_path / "kubelet_internal_checkpoint") == ()


def test_holders_are_those_of_exactly_these_ids() -> None:
    entries = (
        _expected(container="a"),
        _expected(container="b", resource="elasticgpu.io/init-slice"),
        _expected(container="c", ids=frozenset(["slice-4", "slice-5"])),
    )
    found = holders(entries, resource="elasticgpu.io/slice", ids=["slice-4"])
    assert [entry.container for entry in found] == ["a"]


@pytest.mark.parametrize(
    ("name", "nonce"),
    [("elasticgpu.io/slice=ab", "ab"), ("elasticgpu.io/slice=", None), ("nvidia.com/gpu=0", None), ("", None)],
)
def test_nonce_of_a_name(name: str, nonce: str | None) -> None:
    assert nonce_of(name) == nonce
