"""Descriptions, installation as a driver, the daemon and its command line."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from gpusim import config, faults, install, truth
from gpusim.__main__ import main
from gpusim.build import build
from gpusim.testing import CONFIGS, running, wait_for

pytestmark = pytest.mark.native

T4 = {"model": "NVIDIA-T4"}
UUID = "GPU-00000000-1111-2222-3333-444444444444"


@pytest.mark.parametrize(
    ("raw", "node", "message"),
    [
        pytest.param({}, None, "write either `cards: [...]` or `nodes: {NAME: {cards: [...]}}`", id="empty"),
        pytest.param({"cards": [{"model": "T4"}]}, None, "model 'T4' is unknown; write one of NVIDIA-A10,", id="model"),
        pytest.param({"cards": [T4 | {"uuid": "GPU-1"}]}, None, "cards.0.uuid: String should match", id="uuid"),
        pytest.param({"cards": [T4 | {"uuid": UUID}] * 2}, None, "has the same uuid twice; leave uuid out", id="twins"),
        pytest.param({"cards": [T4], "granule": 3000}, None, "is no power of two; write 512 or 2097152", id="granule"),
        pytest.param({"cards": [T4], "colour": 1}, None, "colour: Extra inputs are not permitted", id="unknown key"),
        pytest.param({"nodes": {"a": {"cards": []}}}, "b", "no node 'b'; write --node with one of a", id="node"),
        pytest.param([1], None, "top level: Input should be a valid dictionary", id="no mapping"),
    ],
)
def test_a_wrong_description_says_what_to_write(raw: object, node: str | None, message: str) -> None:
    with pytest.raises(config.ConfigError) as caught:
        config.parse(raw, node=node, where="f.yaml")
    assert str(caught.value).startswith("f.yaml: ")
    assert message in str(caught.value)


def test_uuids_are_made_of_node_and_index() -> None:
    one, again = (config.parse({"cards": [T4, T4]}, node="a").cards for _ in range(2))
    other = config.parse({"cards": [T4]}, node="b").cards
    assert one == again
    assert len({card.uuid for card in (*one, *other)}) == 3


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_shipped_descriptions_are_good(path: Path) -> None:
    nodes = yaml.safe_load(path.read_text()).get("nodes") or {None: None}
    assert all(config.load(path, node=node).cards for node in nodes)


def test_installation_looks_like_a_drivers(tmp_path: Path) -> None:
    node = config.load(CONFIGS / "mixed.yaml", node="node-a")
    for _ in range(2):
        path = install.install(node=node, built=build(), root=tmp_path)
    libraries = tmp_path / "run/nvidia/driver/usr/lib/x86_64-linux-gnu"
    names = ["libcuda.so", "libcuda.so.1", "libnvidia-ml.so", "libnvidia-ml.so.1"]
    assert sorted(p.name for p in libraries.iterdir()) == names
    spec = yaml.safe_load(path.read_text())
    assert (path, spec["kind"]) == (tmp_path / "var/run/cdi/nvidia.yaml", "nvidia.com/gpu")
    uuids = [card.uuid for card in node.cards]
    assert [device["name"] for device in spec["devices"]] == ["0", "1", *uuids, "all"]
    files = {d["name"]: [m["containerPath"] for m in d["containerEdits"]["mounts"]] for d in spec["devices"]}
    assert files[uuids[1]] == files["1"] == [f"/dev/gpusim/cards/{uuids[1]}"]
    assert files["all"] == files["0"] + files["1"]
    common = {m["containerPath"]: m for m in spec["containerEdits"]["mounts"]}
    in_container = [f"/usr/lib/x86_64-linux-gnu/{name}" for name in names]
    assert sorted(common) == sorted(["/dev/gpusim/state", "/dev/gpusim/ctl.sock", *in_container])
    assert all((tmp_path / common[name]["hostPath"].lstrip("/")).exists() for name in in_container)
    assert "ro" in common[in_container[0]]["options"]
    assert "rw" in common["/dev/gpusim/state"]["options"]


def test_commands_that_fail_say_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["truth", "--dir", str(tmp_path)]) == 1
    assert "is `python -m gpusim serve` running" in capsys.readouterr().err
    assert main(["fault", "--dir", str(tmp_path), "--card", "x", "lost"]) == 1
    assert "no gpusim daemon answers" in capsys.readouterr().err
    assert main(["serve", "--config", str(tmp_path / "none.yaml"), "--dir", str(tmp_path)]) == 1
    assert "none.yaml" in capsys.readouterr().err


def test_truth_and_faults_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    with running("one-t4") as node:
        directory = ["--dir", str(node.dir)]
        assert main(["fault", *directory, "--card", node.uuids[0], "xid", "31"]) == 0
        assert main(["fault", *directory, "--card", node.uuids[0], "lost"]) == 0
        assert main(["truth", *directory]) == 0
        shown = json.loads(capsys.readouterr().out)
        assert [(card["uuid"], card["lost"], card["used"]) for card in shown["cards"]] == [(node.uuids[0], True, 0)]
        with pytest.raises(faults.FaultError, match=f"write one of {node.uuids[0]}"):
            node.fault("GPU-unknown", "heal")


def test_a_directory_has_one_daemon() -> None:
    with running("one-t4") as node:
        command = [
            sys.executable,
            "-m",
            "gpusim",
            "serve",
            "--config",
            str(CONFIGS / "one-t4.yaml"),
            "--dir",
            str(node.dir),
        ]
        env = {**os.environ, "PYTHONPATH": str(CONFIGS.parent.parent)}
        second = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=30)
        assert second.returncode == 1
        assert "another gpusim daemon serves it" in second.stderr
        assert node.truth().cards


def test_history_keeps_the_cgroup_and_the_peak_of_the_ended() -> None:
    code = """
from cuda.bindings import driver as d
assert d.cuInit(0)[0] == 0
d.cuCtxSetCurrent(d.cuDevicePrimaryCtxRetain(0)[1])
p = d.cuMemAlloc(100 << 20)[1]
d.cuMemFree(p)
print(max((line.split(":", 2)[2] for line in open("/proc/self/cgroup").read().splitlines()), key=len))
"""
    with running("one-t4") as node:
        cgroup = node.run(code).strip()
        assert node.run(code)
        wait_for(lambda: len(node.truth().ended) == 2, what="the processes' end")
        rows = truth.read(node.dir).in_cgroup(cgroup)
        peaks = [row.cards[node.uuids[0]].peak for row in rows if not row.alive]
        assert peaks == [(256 + 100) << 20] * 2
        assert not node.truth().processes
