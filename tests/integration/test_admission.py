"""Admission on a real API server: the webhook configurations of manifests/, served by the real server over real TLS."""

import json
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from egpu_shell import Shell, configurations
from egpu_testing.stack import ROOT
from localcluster import LocalCluster, binaries
from localcluster.errors import ClusterError

pytestmark = pytest.mark.integration

Object = dict[str, Any]
SYSTEM = "elasticgpu-system"
TICKET = "elasticgpu.io/slice"


@pytest.fixture(scope="module")
def admission(control_plane: LocalCluster) -> Iterator[LocalCluster]:
    control_plane.kubectl("apply", "-f", str(ROOT / "manifests/00-namespace.yaml"))
    with Shell(control_plane) as shell:
        control_plane.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(configurations(shell.ports["webhook"])))
        shell.trusted()
        yield control_plane
        for kind in ("mutating", "validating"):
            control_plane.kubectl("delete", f"{kind}webhookconfiguration", "egpu-operator")


@pytest.fixture(scope="module")
def dead_webhook(admission: LocalCluster) -> Iterator[LocalCluster]:
    """The same configurations while no operator answers."""
    admission.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(configurations(1)))
    return admission


def pod(name: str = "p", annotations: Object | None = None, *containers: Object, **spec: Any) -> Object:
    boxes = list(containers) or [{"name": "main", "image": "app"}]
    meta = {"name": name, "namespace": "default"} | ({"annotations": annotations} if annotations else {})
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"containers": boxes, **spec}}


def create(cluster: LocalCluster, body: Object, *arguments: str) -> Object:
    """kubectl create; JSON, for large bodies are slow as YAML."""
    return json.loads(cluster.kubectl("create", *arguments, "-o", "json", "-f", "-", stdin=json.dumps(body)))


def said(cluster: LocalCluster, *arguments: str, stdin: str) -> str:
    """What kubectl says on the error channel: warnings."""
    command = [binaries.folder() / "kubectl", f"--kubeconfig={cluster.kubeconfig}", *arguments]
    return subprocess.run(command, input=stdin, text=True, capture_output=True, check=True).stderr


CLAIMED = {"egpuc.elasticgpu.io/main": "c"}
MANY = [
    {"name": f"b{i}", "image": "app", "env": [{"name": f"E{j}", "value": "v"} for j in range(20)]} for i in range(200)
]
BIG_ENV = [{"name": "main", "image": "app", "env": [{"name": f"E{j}", "value": "v"} for j in range(9_000)]}]

UNTOUCHED: dict[str, Object] = {
    "plain": pod(),
    "no labels, no annotations, generateName": pod() | {"metadata": {"generateName": "x-", "namespace": "default"}},
    "200 containers with 20 variables each": pod("p", None, *MANY),
    "9,000 variables": pod("p", None, *BIG_ENV),
    "900 annotations": pod("p", {f"example.com/a{i}": "v" * 100 for i in range(900)}),
    "large annotation": pod("p", {"example.com/a": "v" * 250_000}),
    "900 labels": pod()
    | {"metadata": {"name": "p", "namespace": "default", "labels": {f"l{i}": "v" for i in range(900)}}},
    "init containers and volumes": pod(
        "p", None, initContainers=[{"name": "i", "image": "app"}], volumes=[{"name": "v"}]
    ),
    "another's resources": pod("p", None, {"name": "m", "image": "a", "resources": {"limits": {"example.com/gpu": 1}}}),
    "environment from elsewhere": pod(
        "p", None, {"name": "m", "image": "a", "envFrom": [{"configMapRef": {"name": "c"}}], "env": [{"name": "A"}]}
    ),
    "host network, node chosen": pod(nodeName="node-a", hostNetwork=True),
    "windows": pod(os={"name": "windows"}),
}

CONCERNED: dict[str, Object] = {
    "annotation": pod("p", CLAIMED),
    "annotation for an unknown container": pod("p", {"egpuc.elasticgpu.io/x": "c"}, *MANY[:2]),
    "slice annotation": pod("p", {"status.elasticgpu.io/main": "s"}),
    "label": pod() | {"metadata": {"name": "p", "namespace": "default", "labels": {"elasticgpu.io/managed": "true"}}},
    "ticket": pod("p", None, {"name": "m", "image": "a", "resources": {"limits": {TICKET: 1}}}),
    "amounts": pod("p", None, {"name": "m", "image": "a", "resources": {"limits": {"elasticgpu.io/gpu-core": 5}}}),
    "NVIDIA_VISIBLE_DEVICES": pod(
        "p", None, {"name": "m", "image": "a", "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}
    ),
    "NVIDIA_VISIBLE_DEVICES in an init container": pod(
        initContainers=[{"name": "i", "image": "a", "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}]
    ),
    "too large to look through": pod("p", {f"example.com/a{i}": "v" for i in range(1100)}),
    "more variables than can be looked through": pod(
        "p", None, {"name": "m", "image": "a", "env": [{"name": f"E{j}"} for j in range(30_000)]}
    ),
}

MUTATED: dict[str, tuple[Object, dict[str, str]]] = {
    "one container": (pod("p", CLAIMED), {"main": TICKET}),
    "any name": (pod("p", {"egpuc.elasticgpu.io/gpu": "c"}), {"main": TICKET}),
    "init container": (
        pod("p", {"egpuc.elasticgpu.io/i": "c"}, initContainers=[{"name": "i", "image": "app"}]),
        {"i": "elasticgpu.io/init-slice"},
    ),
    "sidecar": (
        pod(
            "p",
            {"egpuc.elasticgpu.io/s": "c"},
            initContainers=[{"name": "s", "image": "app", "restartPolicy": "Always"}],
        ),
        {"s": TICKET},
    ),
    "one of 200": (pod("p", {"egpuc.elasticgpu.io/b9": "c"}, *MANY), {"b9": TICKET}),
    "with limits of its own": (
        pod("p", CLAIMED, {"name": "main", "image": "a", "resources": {"limits": {"cpu": "1"}}}),
        {"main": TICKET},
    ),
}

REFUSED: dict[str, tuple[Object, str]] = {
    "unknown container": (pod("p", {"egpuc.elasticgpu.io/x": "c"}, *MANY[:2]), "one of: b0, b1"),
    "claim of another namespace": (
        pod("p", {"egpuc.elasticgpu.io/main": "o/c"}),
        "a claim is used in its own namespace",
    ),
    "ticket by hand": (CONCERNED["ticket"], "not to be asked for by hand"),
    "amounts in the pod": (CONCERNED["amounts"], "make an ElasticGPUClaim"),
    "slice annotation": (CONCERNED["slice annotation"], "is written by Elastic GPU"),
    "label": (CONCERNED["label"], "is Elastic GPU's own"),
    "node chosen": (pod("p", CLAIMED, nodeName="node-a"), "leave nodeName out"),
    "another scheduler": (pod("p", CLAIMED, schedulerName="mine"), "books no slices"),
}


@pytest.mark.parametrize(("body", "tickets"), MUTATED.values(), ids=MUTATED)
def test_a_pod_with_a_claim_is_completed(admission: LocalCluster, body: Object, tickets: dict[str, str]) -> None:
    made = create(admission, body, "--dry-run=server")
    boxes = [*made["spec"].get("initContainers", ()), *made["spec"]["containers"]]
    limits = {box["name"]: box.get("resources", {}).get("limits", {}) for box in boxes}
    shown = {name: key for name, part in limits.items() for key in part if "elasticgpu.io" in key}
    assert shown == tickets
    assert made["spec"]["schedulerName"] == "egpu-scheduler"
    assert made["metadata"]["labels"]["elasticgpu.io/managed"] == "true"
    assert all({"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"} in box["env"] for box in boxes)


@pytest.mark.parametrize(("body", "words"), REFUSED.values(), ids=REFUSED)
def test_refused_with_advice(admission: LocalCluster, body: Object, words: str) -> None:
    with pytest.raises(ClusterError) as refusal:
        create(admission, body, "--dry-run=server")
    assert words in str(refusal.value)


def test_warnings_reach_the_user(admission: LocalCluster) -> None:
    text = said(admission, "create", "--dry-run=server", "-f", "-", stdin=json.dumps(pod("p", CLAIMED)))
    assert "ElasticGPUClaim c does not exist in namespace default" in text
    claim = {
        "apiVersion": "elasticgpu.io/v1alpha1",
        "kind": "ElasticGPUClaim",
        "metadata": {"name": "c", "namespace": "default"},
        "spec": {"egpuClassName": "nowhere", "resources": {"requests": {"elasticgpu.io/gpu-core": 5}}},
    }
    text = said(admission, "create", "--dry-run=server", "-f", "-", stdin=json.dumps(claim))
    assert "EGPUClass nowhere does not exist" in text


def test_a_claim_is_judged_by_its_class(admission: LocalCluster) -> None:
    fixed = {"apiVersion": "elasticgpu.io/v1alpha1", "kind": "EGPUClass", "metadata": {"name": "fixed"}}
    claim = {
        "apiVersion": "elasticgpu.io/v1alpha1",
        "kind": "ElasticGPUClaim",
        "metadata": {"name": "judged", "namespace": "default"},
        "spec": {"egpuClassName": "fixed", "resources": {"requests": {"elasticgpu.io/gpu-core": 5}}},
    }
    create(admission, fixed)
    create(admission, claim)
    with pytest.raises(ClusterError, match="does not allow a resize"):
        admission.kubectl("patch", "egpuc", "judged", "--type=json", "-p", resized(6))
    with pytest.raises(ClusterError, match=r"is not served by gpushare\.provisioner"):
        create(admission, claim | {"metadata": {"name": "x"}, "spec": _foreign(claim)}, "--dry-run=server")


def resized(core: int) -> str:
    return json.dumps([{"op": "replace", "path": "/spec/resources/requests/elasticgpu.io~1gpu-core", "value": core}])


def _foreign(claim: Object) -> Object:
    return claim["spec"] | {"resources": {"requests": {"gpus.example.com/gpu-core": 5}}}


def test_marks_do_not_change_and_debug_containers_get_no_card(admission: LocalCluster) -> None:
    create(admission, pod("lasting", CLAIMED))
    for change in ("egpuc.elasticgpu.io/main=d", "egpuc.elasticgpu.io/main-", "status.elasticgpu.io/main=s"):
        with pytest.raises(ClusterError, match="cannot change once a pod exists"):
            admission.kubectl("annotate", "--overwrite", "pod", "lasting", change)
    with pytest.raises(ClusterError, match="cannot change once a pod exists"):
        admission.kubectl("label", "pod", "lasting", "elasticgpu.io/managed-")
    admission.kubectl("annotate", "pod", "lasting", "example.com/a=b", "elasticgpu.io/retry-at=now")
    admission.kubectl("debug", "lasting", "--image=app", "--container=debug", "--env=NVIDIA_VISIBLE_DEVICES=all")
    debug = json.loads(admission.kubectl("get", "pod", "lasting", "-o", "json"))["spec"]["ephemeralContainers"][0]
    assert debug["env"] == [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]


@pytest.mark.parametrize("body", UNTOUCHED.values(), ids=UNTOUCHED)
def test_other_pods_do_not_need_the_webhook(dead_webhook: LocalCluster, body: Object) -> None:
    made = create(dead_webhook, body, "--dry-run=server")
    assert made["spec"]["schedulerName"] == "default-scheduler"


@pytest.mark.parametrize("body", CONCERNED.values(), ids=CONCERNED)
def test_pods_that_ask_for_a_gpu_are_refused_while_nobody_answers(dead_webhook: LocalCluster, body: Object) -> None:
    with pytest.raises(ClusterError, match=r"failed calling webhook .*pods\.elasticgpu\.io"):
        create(dead_webhook, body, "--dry-run=server")


@pytest.mark.parametrize("namespace", ["kube-system", SYSTEM, "watching"])
def test_namespaces_that_are_left_alone(dead_webhook: LocalCluster, namespace: str) -> None:
    label = {"metadata": {"name": "watching", "labels": {"elasticgpu.io/admission": "ignore"}}}
    if namespace == "watching":
        create(dead_webhook, {"apiVersion": "v1", "kind": "Namespace"} | label)
    body = CONCERNED["NVIDIA_VISIBLE_DEVICES"]
    made = create(dead_webhook, body | {"metadata": {"name": "p"}}, "--dry-run=server", "-n", namespace)
    assert made["spec"]["containers"][0]["env"][0]["value"] == "all"


def test_a_claim_can_be_made_while_nobody_answers(dead_webhook: LocalCluster) -> None:
    claim = {
        "apiVersion": "elasticgpu.io/v1alpha1",
        "kind": "ElasticGPUClaim",
        "metadata": {"name": "alone", "namespace": "default"},
        "spec": {"resources": {"requests": {"elasticgpu.io/gpu-core": 5}}},
    }
    create(dead_webhook, claim)
