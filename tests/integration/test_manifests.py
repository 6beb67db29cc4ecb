"""manifests/ on a real API server: every object is valid, and roles and policies give what is needed and no more."""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from egpu_shell import documents
from egpu_testing.stack import ROOT
from localcluster import LocalCluster, binaries
from localcluster.errors import ClusterError

pytestmark = pytest.mark.integration

Object = dict[str, Any]
SYSTEM = "elasticgpu-system"
AGENT = f"system:serviceaccount:{SYSTEM}:egpu-agent"
OPERATOR = f"system:serviceaccount:{SYSTEM}:egpu-operator"
ALL = sorted(path.name for path in (ROOT / "manifests").glob("*.yaml"))
SPOKEN = ["00-namespace.yaml", "10-rbac.yaml", "60-policies.yaml"]


@pytest.fixture(scope="module")
def ruled(control_plane: LocalCluster) -> LocalCluster:
    """The control plane with namespace, roles and policies, without webhooks."""
    for name in SPOKEN:
        control_plane.kubectl("apply", "-f", str(ROOT / "manifests" / name))
    return control_plane


@pytest.mark.parametrize("name", ALL)
def test_every_object_is_valid(ruled: LocalCluster, name: str) -> None:
    ruled.kubectl("apply", "--dry-run=server", "--validate=strict", "-f", str(ROOT / "manifests" / name))


def test_both_configurations_choose_the_same_new_pods() -> None:
    mutating, validating = documents("50-webhooks.yaml")
    chosen = [config["webhooks"][0]["matchConditions"] for config in (mutating, validating)]
    assert chosen[0] == chosen[1]
    left_alone = [hook["namespaceSelector"] for hook in (*mutating["webhooks"], *validating["webhooks"][:2])]
    assert left_alone[0] == left_alone[1] == left_alone[2]


def test_the_schedulers_settings_name_the_operators_service() -> None:
    config = next(body for body in documents("30-scheduler.yaml") if body["kind"] == "ConfigMap")
    settings = yaml.safe_load(config["data"]["scheduler.yaml"])
    assert settings["extenders"][0]["urlPrefix"] == f"https://egpu-operator.{SYSTEM}.svc:443/extender"
    assert {row["name"] for row in settings["extenders"][0]["managedResources"]} == {
        "elasticgpu.io/slice",
        "elasticgpu.io/init-slice",
    }


def test_kube_scheduler_reads_its_settings(control_plane: LocalCluster, tmp_path: Path) -> None:
    config = next(body for body in documents("30-scheduler.yaml") if body["kind"] == "ConfigMap")
    settings = yaml.safe_load(config["data"]["scheduler.yaml"])
    settings["clientConnection"] = {"kubeconfig": str(control_plane.kubeconfig)}
    settings["extenders"][0]["tlsConfig"] = {"insecure": True}
    file, written = tmp_path / "in.yaml", tmp_path / "out.yaml"
    file.write_text(yaml.safe_dump(settings))
    command = [binaries.folder() / "kube-scheduler", f"--config={file}", f"--write-config-to={written}"]
    subprocess.run(command, check=True, capture_output=True, timeout=30)
    read = yaml.safe_load(written.read_text())
    assert read["podMaxBackoffSeconds"] == 2
    assert read["profiles"][0]["schedulerName"] == "egpu-scheduler"


def may(cluster: LocalCluster, who: str, *what: str) -> bool:
    try:
        return cluster.kubectl("auth", "can-i", *what, f"--as={who}").strip().endswith("yes")
    except ClusterError:
        return False


NEEDED = {
    OPERATOR: [
        "create pods --subresource=binding -n default",
        "patch pods -n default",
        "patch elasticgpuclaims --subresource=status -n default",
        "patch elasticgpunodes",
        "create elasticgpus",
        "delete elasticgpus",
        "patch egpuclasses",
        f"update secrets/egpu-operator-tls -n {SYSTEM}",
        f"update leases/egpu-operator -n {SYSTEM}",
        "patch mutatingwebhookconfigurations/egpu-operator",
        "create events.events.k8s.io -n default",
    ],
    AGENT: [
        "watch elasticgpus",
        "patch elasticgpus",
        "patch elasticgpus --subresource=status",
        "create elasticgpunodes",
        "patch elasticgpunodes --subresource=status",
        "create events.events.k8s.io -n default",
    ],
}
TOO_MUCH = {
    OPERATOR: [
        "get secrets -n default",
        f"list secrets -n {SYSTEM}",
        f"get secrets/other -n {SYSTEM}",
        "patch elasticgpunodes --subresource=status",
        "create pods -n default",
        "delete pods -n default",
        "update pods --subresource=status -n default",
        "patch nodes",
        "patch mutatingwebhookconfigurations/other",
        "create clusterroles",
        f"patch deployments/egpu-operator -n {SYSTEM}",
    ],
    AGENT: [
        "get secrets -n default",
        f"get secrets -n {SYSTEM}",
        "list pods -n default",
        "patch elasticgpunodes",
        "delete elasticgpunodes",
        "create elasticgpus",
        "delete elasticgpus",
        "patch elasticgpuclaims --subresource=status -n default",
        "patch nodes",
    ],
}


def rows(table: dict[str, list[str]]) -> list[tuple[str, str]]:
    return [(who, what) for who, calls in table.items() for what in calls]


def label(value: str) -> str:
    return value.rpartition(":")[2]


@pytest.mark.parametrize(("who", "what"), rows(NEEDED), ids=label)
def test_roles_give_what_is_needed(ruled: LocalCluster, who: str, what: str) -> None:
    assert may(ruled, who, *what.split())


@pytest.mark.parametrize(("who", "what"), rows(TOO_MUCH), ids=label)
def test_roles_give_no_more(ruled: LocalCluster, who: str, what: str) -> None:
    assert not may(ruled, who, *what.split())


@pytest.fixture(scope="module")
def people(ruled: LocalCluster) -> LocalCluster:
    for role in ("edit", "view"):
        ruled.kubectl("-n", "default", "create", "rolebinding", role, f"--clusterrole={role}", f"--user={role}or")
    return ruled


@pytest.mark.parametrize(
    ("who", "what", "allowed"),
    [
        ("editor", "create elasticgpuclaims -n default", "yes"),
        ("editor", "delete elasticgpuclaims -n default", "yes"),
        ("editor", "get elasticgpuclaims -n default", "yes"),
        ("editor", "patch elasticgpuclaims --subresource=status -n default", "no"),
        ("editor", "create elasticgpuclaims -n kube-public", "no"),
        ("editor", "patch elasticgpus", "no"),
        ("viewor", "list elasticgpuclaims -n default", "yes"),
        ("viewor", "create elasticgpuclaims -n default", "no"),
    ],
)
def test_people(people: LocalCluster, who: str, what: str, allowed: str) -> None:
    assert may(people, who, *what.split()) is (allowed == "yes")


class Agent:
    """kubectl with the token of an agent's pod on a node, or with one that names no node."""

    def __init__(self, cluster: LocalCluster, node: str | None, folder: Path) -> None:
        bound = ["--bound-object-kind=Node", f"--bound-object-name={node}"] if node else []
        token = cluster.kubectl("-n", SYSTEM, "create", "token", "egpu-agent", *bound).strip()
        config = yaml.safe_load(Path(cluster.kubeconfig).read_text())
        config["users"][0]["user"] = {"token": token}
        self._config = folder / f"agent-{node}.kubeconfig"
        self._config.write_text(yaml.safe_dump(config))

    def __call__(self, *arguments: str, body: Object | None = None) -> str:
        """What kubectl prints; the refusal on its error channel if it is refused."""
        command = [binaries.folder() / "kubectl", f"--kubeconfig={self._config}", *arguments]
        given = json.dumps(body) if body else None
        done = subprocess.run(command, input=given, text=True, capture_output=True, check=False)
        return done.stderr if done.returncode else done.stdout


def node_cards(name: str, **spec: Any) -> Object:
    kind = {"apiVersion": "elasticgpu.io/v1alpha1", "kind": "ElasticGPUNode", "metadata": {"name": name}}
    return kind | ({"spec": spec} if spec else {})


def gpu_slice(name: str, node: str) -> Object:
    return {
        "apiVersion": "elasticgpu.io/v1alpha1",
        "kind": "ElasticGPU",
        "metadata": {"name": name, "finalizers": ["elasticgpu.io/agent", "elasticgpu.io/booking"]},
        "spec": {"nodeName": node, "cards": [{"uuid": "GPU-1", "core": 5, "memory": "1Gi"}]},
    }


@pytest.fixture(scope="module")
def agents(ruled: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Agent]]:
    folder = tmp_path_factory.mktemp("agents")
    for node in ("node-a", "node-b", "node-c"):
        body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}}
        ruled.kubectl("create", "-f", "-", stdin=json.dumps(body))
    for body in (gpu_slice("on-a", "node-a"), gpu_slice("on-b", "node-b"), node_cards("node-b"), node_cards("node-a")):
        ruled.kubectl("create", "-f", "-", stdin=json.dumps(body))
    made = {name: Agent(ruled, name, folder) for name in ("node-a", "node-c")}
    yield made | {"nowhere": Agent(ruled, None, folder)}
    ruled.kubectl("delete", "nodes,egpun", "--all")
    for name in ("on-a", "on-b"):
        ruled.kubectl("patch", "egpu", name, "--type=merge", "-p", '{"metadata":{"finalizers":null}}')
        ruled.kubectl("delete", "egpu", name)


BOOKED = {"bookings": {"GPU-1": {"sequence": 1, "slices": {}}}}
READY = {
    "status": {
        "releasedPodUID": "u1",
        "conditions": [
            {
                "type": "Ready",
                "status": "True",
                "reason": "R",
                "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }
        ],
    }
}
OTHER = {"status": {"conditions": [READY["status"]["conditions"][0] | {"type": "Bound"}]}}  # type: ignore[index]


def patch(kind: str, name: str, body: Object, *options: str) -> list[str]:
    return ["patch", kind, name, "--type=merge", *options, "-p", json.dumps(body)]


STATUS = "--subresource=status"
ONE_LEFT = {"metadata": {"finalizers": ["elasticgpu.io/booking"]}}
NONE_LEFT = {"metadata": {"finalizers": None}}
CALLS: dict[str, tuple[str, list[str], Object | None, str]] = {
    "own status": ("node-a", patch("egpun", "node-a", {"status": {"agentVersion": "1"}}, STATUS), None, "patched"),
    "own cards object": ("node-c", ["create", "-f", "-"], node_cards("node-c"), "created"),
    "foreign status": (
        "node-a",
        patch("egpun", "node-b", {"status": {"agentVersion": "1"}}, STATUS),
        None,
        "Forbidden.*the agent of node node-a may not write about node node-b",
    ),
    "foreign cards object": ("node-a", ["create", "-f", "-"], node_cards("node-x"), "may not write about node node-x"),
    "token without a node": (
        "nowhere",
        patch("egpun", "node-a", {"status": {"agentVersion": "1"}}, STATUS),
        None,
        "names no node",
    ),
    "own bookings": ("node-a", patch("egpun", "node-a", {"spec": BOOKED}), None, "Forbidden"),
    "cards object with bookings": ("node-a", ["create", "-f", "-"], node_cards("node-a", **BOOKED), "without bookings"),
    "slice": ("node-a", ["create", "-f", "-"], gpu_slice("mine", "node-a"), "Forbidden"),
    "own slice's readiness": ("node-a", patch("egpu", "on-a", READY, STATUS), None, "patched"),
    "own slice's other conditions": (
        "node-a",
        patch("egpu", "on-a", OTHER, STATUS),
        None,
        "the rest is the operator's",
    ),
    "own slice's phase": ("node-a", patch("egpu", "on-a", {"status": {"phase": "Bound"}}, STATUS), None, "operator's"),
    "foreign slice's readiness": (
        "node-a",
        patch("egpu", "on-b", READY, STATUS),
        None,
        "may not write about node node-b",
    ),
    "own slice's consumer": (
        "node-a",
        patch("egpu", "on-a", {"spec": {"egpuClassName": "x"}}),
        None,
        "takes its own finalizer",
    ),
    "all finalizers": ("node-a", patch("egpu", "on-a", NONE_LEFT), None, "changes nothing else"),
    "foreign finalizer": ("node-a", patch("egpu", "on-b", ONE_LEFT), None, "may not write about node node-b"),
    "own finalizer": ("node-a", patch("egpu", "on-a", ONE_LEFT), None, "patched"),
    "deletion": ("node-a", ["delete", "egpu", "on-a"], None, "Forbidden"),
}


@pytest.mark.parametrize(("who", "call", "body", "expected"), CALLS.values(), ids=CALLS)
def test_an_agent_writes_about_its_own_node(
    agents: dict[str, Agent], who: str, call: list[str], body: Object | None, expected: str
) -> None:
    said = " ".join(agents[who](*call, body=body).split())
    assert re.search(expected, said), said


def test_the_policy_is_well_typed(ruled: LocalCluster) -> None:
    status = json.loads(ruled.kubectl("get", "validatingadmissionpolicy", "egpu-agent", "-o", "json"))["status"]
    assert status.get("typeChecking", {}).get("expressionWarnings", []) == []
