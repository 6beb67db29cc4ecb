"""What one object can say about itself: refused at apply with a sentence that says what to write, or accepted."""

import copy
import json
import subprocess
from typing import Any

import pytest
import yaml

from localcluster import LocalCluster, binaries
from localcluster.errors import ClusterError

pytestmark = pytest.mark.integration

Object = dict[str, Any]
G = "elasticgpu.io"
P = "gpushare.provisioner.elasticgpu.io"


def claim(requests: Object | None, name: str = "c", **spec: Any) -> Object:
    resources = {} if requests is None else {"requests": requests}
    return {
        "apiVersion": f"{G}/v1alpha1",
        "kind": "ElasticGPUClaim",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"egpuClassName": "shared", "resources": resources, **spec},
    }


def gpu_class(name: str = "k", **fields: Any) -> Object:
    return {"apiVersion": f"{G}/v1alpha1", "kind": "EGPUClass", "metadata": {"name": name}, **fields}


def gpu_slice(name: str = "s", **spec: Any) -> Object:
    cards = [{"uuid": "GPU-1", "core": 25, "memory": "4Gi"}]
    return {
        "apiVersion": f"{G}/v1alpha1",
        "kind": "ElasticGPU",
        "metadata": {"name": name},
        "spec": {"nodeName": "node-a", "cards": cards, **spec},
    }


def node_cards(name: str = "node-a", **spec: Any) -> Object:
    return {"apiVersion": f"{G}/v1alpha1", "kind": "ElasticGPUNode", "metadata": {"name": name}, "spec": spec}


def booking(**entry: Any) -> Object:
    slices = {"egpu-1": {"core": 25, "memory": "4Gi", "time": "2026-01-01T00:00:00Z", **entry}}
    return {"bookings": {"GPU-1": {"sequence": 1, "slices": slices}}}


def consumer(uid: str = "u1", **fields: Any) -> Object:
    return {"podUID": uid, "podName": "p", "podNamespace": "default", "containers": ["main"], **fields}


def apply(cluster: LocalCluster, body: Object, *arguments: str) -> str:
    return cluster.kubectl("apply", *arguments, "-f", "-", stdin=yaml.safe_dump(body))


ACCEPTED: dict[str, Object] = {
    "percent and quantity": claim({f"{G}/gpu-core": 25, f"{G}/gpu-memory": "4Gi"}),
    "amounts as text": claim({f"{G}/gpu-core": "25", f"{G}/gpu-memory": "4096Mi"}),
    "memory alone": claim({f"{G}/gpu-memory": "500Mi"}),
    "memory in bytes": claim({f"{G}/gpu-memory": 4294967296}),
    "memory with a decimal unit": claim({f"{G}/gpu-memory": "4G"}),
    "core alone": claim({f"{G}/gpu-core": 1}),
    "whole card": claim({f"{G}/gpu-core": 100}),
    "three whole cards": claim({f"{G}/gpu-core": 300}),
    "whole cards as text": claim({f"{G}/gpu-core": "1600"}),
    "memory percent": claim({f"{G}/gpu-core": 10, f"{G}/gpu-memory-percent": 30}),
    "tflops": claim({f"{G}/gpu-tflops": "2.5", f"{G}/gpu-memory": "1Gi"}),
    "count with core": claim({f"{G}/gpu-count": 2, f"{G}/gpu-core": 50}),
    "provisioner prefix, bare number is GiB": claim({f"{P}/gpu-core": 50, f"{P}/gpu-memory": 4}),
    "provisioner prefix, quantity": claim({f"{P}/gpu-memory": "4Gi"}),
    "no class": claim({f"{G}/gpu-core": 5}, egpuClassName=None),
    "selector": claim({f"{G}/gpu-core": 5}, selector={"model": {"in": ["A100"]}, "nodeLabels": [{"key": "zone"}]}),
    "pre-bound": claim({f"{G}/gpu-core": 5}, egpuName="mine"),
    "class with nothing said": gpu_class(),
    "class with everything said": gpu_class(
        provisioner="gpus.example.com",
        parameters={"tflopsPrecision": "fp32"},
        reclaimPolicy="Retain",
        egpuBindingMode="Immediate",
        isolation="none",
        placement={"node": "spread", "card": "spread"},
        allowResize=True,
    ),
    "an admin's slice": gpu_slice(),
    "a slice for a claim to come": gpu_slice(claimRef={"namespace": "default", "name": "c"}),
    "a node without bookings": node_cards(),
    "a node with a booking": node_cards(**booking()),
}

REFUSED: dict[str, tuple[Object, str]] = {
    "core 0": (claim({f"{G}/gpu-core": 0}), "write 1 to 100"),
    "core 0 as text": (claim({f"{G}/gpu-core": "0"}), "write 1 to 100"),
    "core 150": (claim({f"{G}/gpu-core": 150}), "or 200, 300"),
    "core 150 as text": (claim({f"{G}/gpu-core": "150"}), "or 200, 300"),
    "core -1": (claim({f"{G}/gpu-core": -1}), "write 1 to 100"),
    "core 1700": (claim({f"{G}/gpu-core": 1700}), "write 1 to 100"),
    "core with a percent sign": (claim({f"{G}/gpu-core": "25%"}), "write 1 to 100"),
    "core as a fraction": (claim({f"{G}/gpu-core": "0.25"}), "write 1 to 100"),
    "core 0 under the provisioner": (claim({f"{P}/gpu-core": 0}), "write 1 to 100"),
    "memory 4 (bytes)": (claim({f"{G}/gpu-memory": 4}), "write 4Gi"),
    "memory 4 as text": (claim({f"{G}/gpu-memory": "4"}), "write 4Gi"),
    "memory 4GiB": (claim({f"{G}/gpu-memory": "4GiB"}), "write 4Gi"),
    "memory 4 Gi": (claim({f"{G}/gpu-memory": "4 Gi"}), "write 4Gi"),
    "memory negative": (claim({f"{G}/gpu-memory": "-4Gi"}), "write 4Gi"),
    "memory below a mebibyte": (claim({f"{G}/gpu-memory": "1023Ki"}), "write 4Gi"),
    "memory empty": (claim({f"{G}/gpu-memory": ""}), "write 4Gi"),
    "memory 0 under the provisioner": (claim({f"{P}/gpu-memory": 0}), "write 4 or 4Gi"),
    "memory 4GiB under the provisioner": (claim({f"{P}/gpu-memory": "4GiB"}), "write 4 or 4Gi"),
    "memory percent 0": (claim({f"{G}/gpu-memory-percent": 0}), "write 1 to 100"),
    "memory percent 101": (claim({f"{G}/gpu-memory-percent": "101"}), "write 1 to 100"),
    "memory twice": (claim({f"{G}/gpu-memory": "4Gi", f"{G}/gpu-memory-percent": 5}), "exclude each other"),
    "core and tflops": (claim({f"{G}/gpu-core": 5, f"{G}/gpu-tflops": 5}), "exclude each other"),
    "tflops 0": (claim({f"{G}/gpu-tflops": "0.0"}), "write 10 or 2.5"),
    "tflops in words": (claim({f"{G}/gpu-tflops": "ten"}), "write 10 or 2.5"),
    "count 0": (claim({f"{G}/gpu-count": 0, f"{G}/gpu-core": 5}), "write 1 to 16"),
    "count 17": (claim({f"{G}/gpu-count": "17", f"{G}/gpu-core": 5}), "write 1 to 16"),
    "count alone": (claim({f"{G}/gpu-count": 2}), "write gpu-core 100 beside it"),
    "whole cards and memory": (claim({f"{G}/gpu-core": 200, f"{G}/gpu-memory": "4Gi"}), "leave the other requests out"),
    "whole cards as text and count": (
        claim({f"{G}/gpu-core": "200", f"{G}/gpu-count": 2}),
        "leave the other requests out",
    ),
    "same key under two prefixes": (claim({f"{G}/gpu-core": 5, f"{P}/gpu-core": 5}), "keep one of them"),
    "unknown key": (claim({f"{G}/gpu-cores": 5}), "unknown request; write"),
    "key without a prefix": (claim({"gpu-core": 5}), "unknown request; write"),
    "another's key": (claim({"nvidia.com/gpu": 1}), "unknown request; write"),
    "no requests": (claim({}), "at least 1 properties"),
    "requests left out": (claim(None), "spec.resources.requests: Required value"),
    "amount is a list": (claim({f"{G}/gpu-core": [5]}), "must be of type integer"),
    "empty class name": (claim({f"{G}/gpu-core": 5}, egpuClassName=""), "at least 1 chars"),
    "misspelt field": (claim({f"{G}/gpu-core": 5}, className="x"), 'unknown field "spec.className"'),
    "class with an unknown policy": (gpu_class(reclaimPolicy="Recycle"), 'supported values: "Delete", "Retain"'),
    "class with an unknown mode": (gpu_class(egpuBindingMode="Later"), '"WaitForFirstConsumer", "Immediate"'),
    "class with an unknown isolation": (gpu_class(isolation="mps"), 'supported values: "libvgpu", "none"'),
    "class with an unknown placement": (gpu_class(placement={"card": "random"}), '"binpack", "spread"'),
    "class with a bad provisioner": (gpu_class(provisioner="My GPU"), "provisioner"),
    "slice without cards": (gpu_slice(cards=[]), "at least 1 items"),
    "slice without a node": (gpu_slice(nodeName=None), "spec.nodeName: Required value"),
    "slice with core 101": (
        gpu_slice(cards=[{"uuid": "G", "core": 101, "memory": "1Gi"}]),
        "less than or equal to 100",
    ),
    "slice with a card twice": (gpu_slice(cards=[{"uuid": "G", "core": 1, "memory": 1}] * 2), "Duplicate value"),
    "consumer without containers": (gpu_slice(consumer=consumer(containers=[])), "at least 1 items"),
    "booking of core 101": (node_cards(**booking(core=101)), "less than or equal to 100"),
    "booking without a time": (node_cards(**booking(time=None)), "time: Required value"),
}


@pytest.mark.parametrize("body", ACCEPTED.values(), ids=ACCEPTED)
def test_accepted(control_plane: LocalCluster, body: Object) -> None:
    apply(control_plane, body, "--dry-run=server")


@pytest.mark.parametrize(("body", "words"), REFUSED.values(), ids=REFUSED)
def test_refused(control_plane: LocalCluster, body: Object, words: str) -> None:
    with pytest.raises(ClusterError) as refusal:
        apply(control_plane, body, "--dry-run=server")
    assert words in str(refusal.value)


def bound(body: Object) -> Object:
    """A slice in use."""
    ref = {"namespace": "default", "name": "c", "uid": "claim-1"}
    return body | {"spec": body["spec"] | {"claimRef": ref, "consumer": consumer()}}


def changed(body: Object, path: str, value: object) -> Object:
    body = copy.deepcopy(body)
    *way, last = path.split(".")
    place = body
    for step in way:
        place = place[int(step)] if isinstance(place, list) else place[step]
    if value is None:
        del place[last]
    else:
        place[last] = value
    return body


FULL = claim({f"{G}/gpu-core": 5}, selector={"model": {"in": ["A100"]}}, egpuName="mine", name="immutable")
UNSAID = claim({f"{G}/gpu-core": 5}, name="unsaid") | {"spec": {"resources": {"requests": {f"{G}/gpu-core": 5}}}}
USED = bound(gpu_slice("used"))
RELEASING = changed(bound(gpu_slice("releasing")), "spec.consumer", consumer(releasing=True))
FREE = gpu_slice("free")
CLASS = gpu_class("immutable", parameters={"a": "b"})

UNCHANGEABLE: dict[str, tuple[Object, str, object, str]] = {
    "class of a claim": (FULL, "spec.egpuClassName", "other", "delete the claim and create another"),
    "class of a claim removed": (FULL, "spec.egpuClassName", None, "delete the claim and create another"),
    "slice of a claim": (FULL, "spec.egpuName", "other", "egpuName cannot be changed once set"),
    "selector of a claim": (FULL, "spec.selector", {"model": {"in": ["H100"]}}, "selector cannot be changed"),
    "selector of a claim removed": (FULL, "spec.selector", None, "selector cannot be changed"),
    "policy of a class": (CLASS, "reclaimPolicy", "Retain", "a class cannot be changed"),
    "mode of a class": (CLASS, "egpuBindingMode", "Immediate", "a class cannot be changed"),
    "parameters of a class": (CLASS, "parameters", {"a": "c"}, "create another class"),
    "parameters of a class removed": (CLASS, "parameters", None, "create another class"),
    "node of a slice": (USED, "spec.nodeName", "node-b", "a slice stays where its card is"),
    "card of a slice": (USED, "spec.cards.0.uuid", "GPU-2", "cards of a slice cannot be changed"),
    "isolation of a slice": (USED, "spec.isolation", "none", "reclaimPolicy and isolation cannot be changed"),
    "claim of a slice": (USED, "spec.claimRef.uid", "claim-2", "claimRef cannot pass"),
    "claim's uid of a slice removed": (USED, "spec.claimRef.uid", None, "claimRef cannot pass"),
    "pod of a slice": (USED, "spec.consumer.podUID", "u2", "consumer cannot pass from one pod to another"),
    "release taken back": (RELEASING, "spec.consumer.releasing", False, "consumer cannot pass"),
}

CHANGEABLE: dict[str, tuple[Object, str, object]] = {
    "amounts of a claim": (FULL, "spec.resources.requests", {f"{G}/gpu-core": 10}),
    "class filled in": (UNSAID, "spec.egpuClassName", "default"),
    "slice filled in": (UNSAID, "spec.egpuName", "mine"),
    "amounts of a slice": (USED, "spec.cards.0.memory", "8Gi"),
    "release asked for": (USED, "spec.consumer.releasing", True),
    "consumer cleared": (USED, "spec.consumer", None),
    "consumer set": (FREE, "spec.consumer", consumer()),
    "claim let go": (USED, "spec.claimRef", None),
    "claim taken": (FREE, "spec.claimRef", {"namespace": "default", "name": "c", "uid": "claim-1"}),
}


@pytest.fixture(scope="module")
def stored(control_plane: LocalCluster) -> LocalCluster:
    for body in (FULL, UNSAID, USED, RELEASING, FREE, CLASS):
        apply(control_plane, body, "--server-side")
    return control_plane


def replace(cluster: LocalCluster, body: Object) -> str:
    return cluster.kubectl("replace", "--dry-run=server", "-f", "-", stdin=yaml.safe_dump(body))


@pytest.mark.parametrize(("body", "path", "value", "words"), UNCHANGEABLE.values(), ids=UNCHANGEABLE)
def test_unchangeable(stored: LocalCluster, body: Object, path: str, value: object, words: str) -> None:
    with pytest.raises(ClusterError) as refusal:
        replace(stored, changed(body, path, value))
    assert words in str(refusal.value)


@pytest.mark.parametrize(("body", "path", "value"), CHANGEABLE.values(), ids=CHANGEABLE)
def test_changeable(stored: LocalCluster, body: Object, path: str, value: object) -> None:
    replace(stored, changed(body, path, value))


def test_defaults_of_a_class(control_plane: LocalCluster) -> None:
    answer = json.loads(apply(control_plane, gpu_class("plain"), "--dry-run=server", "-o", "json"))
    shown = {key: answer[key] for key in answer if key not in ("apiVersion", "kind", "metadata")}
    assert shown == {
        "provisioner": P,
        "reclaimPolicy": "Delete",
        "egpuBindingMode": "WaitForFirstConsumer",
        "isolation": "libvgpu",
        "placement": {"node": "binpack", "card": "binpack"},
        "allowResize": False,
    }


def test_half_a_placement_is_filled_in(control_plane: LocalCluster) -> None:
    body = gpu_class("half", placement={"node": "spread"})
    answer = json.loads(apply(control_plane, body, "--dry-run=server", "-o", "json"))
    assert answer["placement"] == {"node": "spread", "card": "binpack"}


def test_status_is_dropped_at_create(control_plane: LocalCluster) -> None:
    body = gpu_slice("forged") | {"status": {"phase": "Bound"}}
    apply(control_plane, body)
    answer = json.loads(control_plane.kubectl("get", "egpu", "forged", "-o", "json"))
    assert "status" not in answer


def test_the_old_version_is_served_with_a_warning(control_plane: LocalCluster) -> None:
    old = claim({f"{G}/gpu-core": 5}, name="old") | {"apiVersion": f"{G}/v1alpha"}
    answer = subprocess.run(
        [binaries.folder() / "kubectl", f"--kubeconfig={control_plane.kubeconfig}", "apply", "-f", "-"],
        input=yaml.safe_dump(old),
        text=True,
        capture_output=True,
        check=True,
    )
    assert "Warning: elasticgpu.io/v1alpha is deprecated; write elasticgpu.io/v1alpha1" in answer.stderr
    shown = json.loads(control_plane.kubectl("get", "elasticgpuclaims.v1alpha1.elasticgpu.io", "old", "-o", "json"))
    assert shown["spec"] == old["spec"]


@pytest.mark.parametrize(
    ("path", "words"),
    {
        "egpuc.spec.resources.requests": "percent of one card, 1 to 100",
        "egpuclass.egpuBindingMode": "as soon as the claim exists",
        "egpu.spec.consumer": "The pod that may use the slice now",
        "egpun.spec.bookings": "What is booked of each card",
    }.items(),
)
def test_explain(control_plane: LocalCluster, path: str, words: str) -> None:
    assert words in " ".join(control_plane.kubectl("explain", path).split())


@pytest.mark.parametrize("selector", ["spec.nodeName=node-a", "status.phase!=Bound"])
def test_slices_are_selected_by_the_server(stored: LocalCluster, selector: str) -> None:
    assert "used" in stored.kubectl("get", "egpu", f"--field-selector={selector}", "-o", "name")
