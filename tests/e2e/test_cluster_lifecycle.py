"""The cluster itself: its nodes run pods, its parts survive being killed, and nothing is left of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from localcluster import ClusterError, LocalCluster, cgroups, image, linux, probes

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(180),
    pytest.mark.skipif(os.geteuid() != 0, reason="a cluster makes namespaces and mounts: needs root"),
]


def pod(name: str, node: str, *command: str) -> str:
    container = {"name": "main", "image": "elasticgpu/demo:dev", "imagePullPolicy": "Never", "command": list(command)}
    spec = {"nodeName": node, "containers": [container], "terminationGracePeriodSeconds": 0}
    return json.dumps(
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": name}}, "spec": spec}
    )


def run_pod(cluster: LocalCluster, name: str, node: str, *command: str) -> None:
    cluster.kubectl("apply", "-f", "-", stdin=pod(name, node, *command))
    cluster.kubectl("wait", "--for=condition=Ready", f"pod/{name}", "--timeout=60s")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    folder = tmp_path_factory.mktemp("lifecycle") / "cluster"
    with LocalCluster(folder, nodes=2, images=[image.archive(image.demo())]) as cluster:
        run_pod(cluster, "web", "node-a", "python3", "-m", "http.server", "8080")
        cluster.kubectl("expose", "pod", "web", "--port=80", "--target-port=8080")
        run_pod(cluster, "client", "node-b", "sleep", "100000")
        yield cluster


@pytest.mark.parametrize("host", ["web", "web.default.svc", "web.default.svc.cluster.local"])
def test_a_pod_reaches_a_service_on_another_node_by_name(cluster: LocalCluster, host: str) -> None:
    assert "Directory listing" in cluster.kubectl("exec", "client", "--", "wget", "-qO-", f"http://{host}/")


def test_a_pod_reaches_kube_apiserver(cluster: LocalCluster) -> None:
    script = (
        "import ssl, urllib.request\n"
        "context = ssl.create_default_context(cafile='/var/run/secrets/kubernetes.io/serviceaccount/ca.crt')\n"
        "print(urllib.request.urlopen('https://kubernetes.default.svc/version', context=context).status)\n"
    )
    assert cluster.kubectl("exec", "client", "--", "python3", "-c", script) == "200\n"


def test_a_node_sees_devices_and_files_of_its_own(cluster: LocalCluster) -> None:
    for inside in ("/dev/mine", "/run/mine", "/var/lib/mine", "/var/log/mine"):
        cluster.node("node-a").exec("touch", inside)
        assert cluster.node("node-a").path(inside).exists()
        assert not cluster.node("node-b").path(inside).exists()
        assert not Path(inside).exists()


def test_a_pod_outlives_kubelet_and_containerd(cluster: LocalCluster) -> None:
    node = cluster.node("node-a")
    before = cluster.kubectl("get", "pod", "web", "-o", "jsonpath={.status.containerStatuses[0].containerID}")
    assert [node.kill(program) for program in ("kubelet", "containerd")] == [-signal.SIGKILL] * 2
    for program in ("containerd", "kubelet"):
        node.start(program)
    assert probes.wait(lambda: kubelet_answers(cluster, "web"), timeout=60.0)
    after = cluster.kubectl("get", "pod", "web", "-o", "jsonpath={.status.containerStatuses[0].containerID}")
    assert after == before
    assert "Directory listing" in cluster.kubectl("exec", "client", "--", "wget", "-qO-", "http://web/")


def kubelet_answers(cluster: LocalCluster, name: str) -> bool:
    """Whether a command runs in the pod, which takes both kubelet and containerd."""
    try:
        cluster.kubectl("exec", name, "--", "true")
    except ClusterError:
        return False
    return True


def test_objects_outlive_kube_apiserver(cluster: LocalCluster) -> None:
    cluster.stop("kube-apiserver")
    cluster.start("kube-apiserver")
    assert probes.wait(lambda: names_of_pods(cluster) >= {"web", "client"}, timeout=60.0)


def names_of_pods(cluster: LocalCluster) -> set[str]:
    try:
        return {item["metadata"]["name"] for item in cluster.get("/api/v1/namespaces/default/pods")["items"]}
    except OSError:
        return set()


def test_a_node_that_loses_power_runs_its_pods_again(cluster: LocalCluster) -> None:
    def restarts() -> int:
        statuses = cluster.get("/api/v1/namespaces/default/pods/client")["status"]["containerStatuses"]
        return int(statuses[0]["restartCount"]) if statuses[0]["ready"] else 0

    cluster.node("node-b").exec("touch", "/run/gone-with-power")
    cluster.stop("node-b")
    cluster.start("node-b")
    assert probes.wait(lambda: restarts() >= 1, timeout=90.0)
    assert not cluster.node("node-b").path("/run/gone-with-power").exists()


def groups_of(cluster: LocalCluster) -> list[Path]:
    name = json.loads((cluster.folder / "state.json").read_text())["group"]
    return [hierarchy.mountpoint / name for hierarchy in cgroups.observe()]


def processes_of(cluster: LocalCluster) -> set[tuple[int, str | None]]:
    files = [file for group in groups_of(cluster) for file in group.rglob("cgroup.procs")]
    pids = {int(line) for file in files for line in file.read_text().split()}
    return {(pid, linux.start_time(pid)) for pid in pids}


def machine() -> dict[str, object]:
    """What a cluster could change on the machine, but for processes and groups."""
    sysctls = (
        "vm/overcommit_memory",
        "vm/panic_on_oom",
        "kernel/panic",
        "kernel/panic_on_oops",
        "kernel/keys/root_maxkeys",
    )
    return {
        "mounts": Path("/proc/self/mounts").read_text(),
        "links": subprocess.run(["ip", "-o", "address"], capture_output=True, text=True, check=True).stdout,
        "routes": subprocess.run(["ip", "route"], capture_output=True, text=True, check=True).stdout,
        "rules": subprocess.run(["nft", "list", "ruleset"], capture_output=True, text=True, check=True).stdout,
        "sysctls": {name: Path("/proc/sys", name).read_text() for name in sysctls},
        "folders": {
            name: sorted(Path(name).iterdir()) for name in ("/run", "/var/lib", "/var/log", "/dev", "/opt", "/etc")
        },
    }


@pytest.mark.parametrize("how", ["down", "supervisor killed", "starter killed"])
def test_nothing_is_left(tmp_path: Path, how: str) -> None:
    before = machine()
    cluster = LocalCluster(tmp_path / "cluster", images=[image.archive(image.demo())])
    cluster.up()
    run_pod(cluster, "busy", "node-a", "sleep", "100000")
    groups, processes = groups_of(cluster), processes_of(cluster)
    assert len(processes) > 10
    end(cluster, how)
    assert probes.wait(lambda: not any(linux.start_time(pid) == start for pid, start in processes), timeout=30.0)
    assert probes.wait(lambda: not any(group.exists() for group in groups), timeout=30.0)
    assert machine() == before
    cluster.down()
    assert not cluster.folder.exists()


def end(cluster: LocalCluster, how: str) -> None:
    if how == "down":
        cluster.down()
    elif how == "supervisor killed":
        os.kill(json.loads((cluster.folder / "state.json").read_text())["supervisor"], signal.SIGKILL)
    else:
        assert cluster._lifeline is not None
        os.close(cluster._lifeline)
        cluster._lifeline = None


def test_two_clusters_do_not_meet(tmp_path: Path, cluster: LocalCluster) -> None:
    with LocalCluster(tmp_path / "other") as other:
        assert other.node("node-a").ip == cluster.node("node-a").ip
        assert names_of_pods(other) == set()
        assert names_of_pods(cluster) >= {"web", "client"}
    assert names_of_pods(cluster) >= {"web", "client"}


def test_a_control_plane_alone_takes_pods_and_collects_garbage(tmp_path: Path) -> None:
    with LocalCluster(tmp_path / "alone", nodes=0) as alone:
        alone.kubectl("create", "configmap", "owner")
        uid = alone.kubectl("get", "configmap", "owner", "-o", "jsonpath={.metadata.uid}")
        owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": uid}
        metadata = {"name": "owned", "ownerReferences": [owner]}
        alone.kubectl(
            "apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "Secret", "metadata": metadata})
        )
        alone.kubectl("apply", "-f", "-", stdin=pod("waiting", "", "true"))
        alone.kubectl("delete", "configmap", "owner")
        alone.kubectl("wait", "--for=delete", "secret/owned", "--timeout=60s")
        assert names_of_pods(alone) == {"waiting"}
