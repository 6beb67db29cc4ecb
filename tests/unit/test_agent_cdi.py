"""CDI specs: merging with the driver's own, and the files."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from egpu.types import Card
from egpu_agent import cdi
from egpu_agent.cdi import SpecFiles, build, merge, ordered, parse_toolkit, read_toolkit, toolkit_edits

DRIVER = {"hostPath": "/usr/lib/libcuda.so.1", "containerPath": "/usr/lib/libcuda.so.1", "options": ["ro", "bind"]}
TOOLKIT: dict[str, Any] = {
    "cdiVersion": "0.7.0",
    "kind": "nvidia.com/gpu",
    "devices": [
        {"name": "0", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0"}]}},
        {"name": "GPU-b", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia1"}]}},
        {"name": "all", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0"}, {"path": "/dev/nvidia1"}]}},
    ],
    "containerEdits": {
        "env": ["NVIDIA_VISIBLE_DEVICES=void"],
        "deviceNodes": [{"path": "/dev/nvidiactl"}],
        "mounts": [DRIVER, {"hostPath": "/tmp/x", "containerPath": "/etc/ld.so.preload"}],
        "hooks": [{"hookName": "createContainer", "path": "/usr/bin/nvidia-cdi-hook"}],
    },
}


def _card(uuid: str, index: int) -> Card:
    return Card(uuid=uuid, index=index, model="T4", memory=1)


@pytest.mark.parametrize("dump", [json.dumps, yaml.safe_dump])
def test_reads_the_toolkits_spec_in_json_and_yaml(tmp_path: Path, dump: Any) -> None:
    (tmp_path / "nvidia.yaml").write_text(dump(TOOLKIT))
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "other.json").write_text(dump(TOOLKIT | {"kind": "vendor.com/x"}))
    (tmp_path / "notes.txt").write_text(dump(TOOLKIT))
    (spec,) = read_toolkit((tmp_path / "missing", tmp_path))
    assert sorted(spec.devices) == ["0", "GPU-b", "all"]


def test_a_card_is_found_by_uuid_and_else_by_index() -> None:
    spec = parse_toolkit(json.dumps(TOOLKIT).encode())
    assert spec is not None
    found = toolkit_edits([spec], [_card("GPU-a", 0), _card("GPU-b", 7)])
    assert found is not None
    edits, version = found
    assert version == "0.7.0"
    assert [node["path"] for node in edits["deviceNodes"]] == ["/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia1"]
    assert edits["mounts"] == [DRIVER], "what the slice mounts itself is not taken from elsewhere"
    assert edits["hooks"] == TOOLKIT["containerEdits"]["hooks"]


def test_a_card_no_spec_lists_gives_nothing() -> None:
    spec = parse_toolkit(json.dumps(TOOLKIT).encode())
    assert spec is not None
    assert toolkit_edits([spec], [_card("GPU-b", 1), _card("GPU-z", 9)]) is None
    assert toolkit_edits([spec], [_card("GPU-z", -1)]) is None
    assert toolkit_edits([spec], []) is None
    assert toolkit_edits([], [_card("GPU-b", 1)]) is None


@pytest.mark.parametrize(
    ("parts", "merged"),
    [
        pytest.param([], {}, id="nothing"),
        pytest.param([{"env": ["A=1"]}, {"env": ["A=1", "B=2"]}], {"env": ["A=1", "B=2"]}, id="once"),
        pytest.param([{"a": 1}, {"a": 2}], {"a": 1}, id="first-scalar"),
        pytest.param(
            [
                {"mounts": [{"containerPath": "/x", "hostPath": "/1"}]},
                {"mounts": [{"containerPath": "/x", "hostPath": "/2"}]},
            ],
            {"mounts": [{"containerPath": "/x", "hostPath": "/1"}]},
            id="first-mount-of-a-path",
        ),
    ],
)
def test_merges(parts: list[cdi.Edits], merged: cdi.Edits) -> None:
    before = json.dumps(parts)
    assert merge(parts) == merged
    assert json.dumps(parts) == before, "inputs stay as they are"


def test_a_specs_version_is_the_higher_one() -> None:
    assert build("n", edits={}, annotation="", version="0.3.0")["cdiVersion"] == "0.6.0"
    assert build("n", edits={}, annotation="", version="1.0.0")["cdiVersion"] == "1.0.0"
    assert ordered("0.10.0") > ordered("0.6.0")


def test_a_spec_is_written_once_and_never_changed(tmp_path: Path) -> None:
    specs = SpecFiles(tmp_path / "cdi")
    specs.write("ab12", build("ab12", edits={"env": ["A=1"]}, annotation="first"))
    specs.write("ab12", build("ab12", edits={"env": ["A=2"]}, annotation="second"))
    assert specs.annotation("ab12") == "first"
    (path,) = (tmp_path / "cdi").iterdir()
    spec = json.loads(path.read_text())
    assert path.name == "elasticgpu.io-slice-ab12.json"
    assert spec["kind"] == "elasticgpu.io/slice"
    assert [device["name"] for device in spec["devices"]] == ["ab12"]
    assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.:-]*", spec["devices"][0]["name"])


def test_only_own_specs_are_counted_and_removed(tmp_path: Path) -> None:
    (tmp_path / "nvidia.json").write_text(json.dumps(TOOLKIT))
    (tmp_path / ".elasticgpu.io-slice-dead.json.0000.tmp").write_text("half")
    specs = SpecFiles(tmp_path)
    for nonce in ("aa", "bb"):
        mounts = [cdi.mount(Path("/lib") / nonce, "/x")]
        specs.write(nonce, build(nonce, edits={"mounts": mounts}, annotation=nonce))
    assert specs.nonces() == {"aa", "bb"}
    assert specs.host_paths() == {"/lib/aa", "/lib/bb"}
    specs.remove(["aa", "never-was"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["elasticgpu.io-slice-bb.json", "nvidia.json"]
    assert not specs.exists("aa")
    assert specs.annotation("aa") is None
