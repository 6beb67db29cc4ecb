"""The parts of localcluster that need no cluster."""

from pathlib import Path

import pytest

from localcluster import binaries, cgroups, configs, control, oci, programs, spec
from localcluster.errors import ClusterError
from localcluster.spec import ClusterSpec

V1 = """\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct
34 31 0:31 / /sys/fs/cgroup/cpuset rw,relatime - cgroup cgroup rw,cpuset
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,xattr,name=systemd
"""
UNIFIED = "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n"
V2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"


@pytest.mark.parametrize(
    ("mountinfo", "expected"),
    [
        pytest.param(V2, {"/sys/fs/cgroup": ()}, id="v2"),
        pytest.param(
            V1 + UNIFIED,
            {
                "/sys/fs/cgroup/cpu,cpuacct": ("cpu", "cpuacct"),
                "/sys/fs/cgroup/cpuset": ("cpuset",),
                "/sys/fs/cgroup/systemd": ("name=systemd",),
            },
            id="hybrid counts as v1",
        ),
        pytest.param("22 27 0:21 / /proc rw - proc proc rw\n", {}, id="none"),
    ],
)
def test_hierarchies_of_a_mountinfo(mountinfo: str, expected: dict[str, tuple[str, ...]]) -> None:
    assert {str(item.mountpoint): item.controllers for item in cgroups.parse(mountinfo)} == expected


@pytest.fixture
def two_nodes(tmp_path: Path) -> ClusterSpec:
    return ClusterSpec(
        folder=tmp_path,
        binaries=Path("/bin"),
        nodes=spec.node_specs(2),
        images=(tmp_path / "pause.tar", tmp_path / "app.tar"),
        gpus=tmp_path / "gpus.yaml",
        apiserver_args=("--v=4",),
    )


def test_a_spec_survives_its_file(two_nodes: ClusterSpec) -> None:
    spec.save(two_nodes)
    assert spec.load(two_nodes.folder) == two_nodes


def test_a_folder_without_cluster_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="bring one up with `python -m localcluster up`"):
        spec.load(tmp_path)


def test_nodes_share_neither_name_nor_address() -> None:
    nodes = spec.node_specs(9)
    assert [node.name for node in nodes[:2]] == ["node-a", "node-b"]
    assert len({node.ip for node in nodes} | {node.pod_ips[0] for node in nodes}) == 18


@pytest.mark.parametrize("count", [-1, 10])
def test_a_number_of_nodes_beyond_the_addresses_is_refused(count: int) -> None:
    with pytest.raises(ClusterError, match="write a number from 0 to 9"):
        spec.node_specs(count)


def test_kubelet_starts_after_the_driver_and_the_pause_image(two_nodes: ClusterSpec) -> None:
    started = programs.node_programs(two_nodes, two_nodes.nodes[0])
    names = [program.name for program in started]
    assert names == ["gpusim-install", "gpusim", "containerd", "import-pause", "import-app", "kubelet"]
    assert "import-pause" in started[-1].after


def test_two_kubelets_of_a_network_share_no_port(two_nodes: ClusterSpec) -> None:
    first, second = (configs.kubelet(two_nodes, node) for node in two_nodes.nodes)
    assert {first["address"], first["healthzBindAddress"]}.isdisjoint({second["address"], second["healthzBindAddress"]})


def test_an_image_archive_has_no_time_and_no_owner(tmp_path: Path) -> None:
    digests = []
    for name in ("one", "two"):
        source = tmp_path / name / "hello"
        source.parent.mkdir()
        source.write_text("hello")
        layer = oci.pack(tmp_path / f"{name}-layer.tar", {"opt/demo/hello": source})
        oci.write(tmp_path / f"{name}.tar", oci.Image(name="docker.io/elasticgpu/hello:dev", layers=(layer,)))
        digests.append(oci.layer(tmp_path / f"{name}.tar").digest)
    assert digests[0] == digests[1]


def test_orders_reach_a_socket_in_a_folder_with_a_long_path(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 30)
    folder.mkdir()

    def answer(order: control.Order) -> object:
        if order["order"] == "refuse":
            raise ClusterError("no")
        return [order["order"], order["program"]]

    control.serve(control.listen(folder), answer)
    assert control.call(folder, "start", program="kubelet") == ["start", "kubelet"]
    with pytest.raises(ClusterError, match=r"^no$"):
        control.call(folder, "refuse")


def test_a_folder_where_nothing_listens_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="nothing runs in"):
        control.call(tmp_path, "status")


def test_a_given_folder_of_programs_must_be_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EGPU_CLUSTER_BIN", str(tmp_path))
    (tmp_path / "etcd").touch(mode=0o755)
    assert binaries.folder(["etcd"]) == tmp_path
    with pytest.raises(ClusterError, match=r"lacks kubelet: unset it"):
        binaries.folder(["etcd", "kubelet"])


def test_a_program_of_another_version_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right, wrong = tmp_path / "right", tmp_path / "wrong"
    for folder, version in ((right, "v1.36.3"), (wrong, "v1.30.0")):
        folder.mkdir()
        (folder / "kubelet").write_text(f"#!/bin/sh\necho Kubernetes {version}\n")
        (folder / "kubelet").chmod(0o755)
    monkeypatch.delenv("EGPU_CLUSTER_BIN", raising=False)
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", f"{right}:{wrong}:/usr/bin:/bin")
    taken = binaries.folder(["kubelet"]) / "kubelet"
    assert taken.read_text() == (right / "kubelet").read_text()
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(right))
    assert binaries.folder(["kubelet"]) == right
