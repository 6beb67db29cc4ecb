"""What becomes of a new pod: completed, or refused with advice."""

import copy
from typing import Any

import pytest

from egpu.types import Pod
from egpu_operator.admission import mutate, pods
from egpu_operator.admission.decide import Observed, Verdict, mutate_pod, validate_pod

Object = dict[str, Any]
CLAIM = "egpuc.elasticgpu.io/"
TICKET, INIT_TICKET, MANAGED = "elasticgpu.io/slice", "elasticgpu.io/init-slice", "elasticgpu.io/managed"
VOID = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}


def box(name: str = "main", **fields: Any) -> Object:
    return {"name": name, "image": "app", **fields}


def limits(resource: str, amount: str) -> Object:
    return {"resources": {"limits": {resource: amount}}}


def pod(
    claims: dict[str, str] | None = None,
    *containers: Object,
    init: tuple[Object, ...] = (),
    meta: Object | None = None,
    **spec: Any,
) -> Object:
    annotations = {CLAIM + container: claim for container, claim in (claims or {}).items()}
    metadata = {"name": "p", "annotations": annotations} if annotations else {"name": "p"}
    for key, value in (meta or {}).items():
        metadata[key] = {**metadata.get(key, {}), **value}  # type: ignore[dict-item]
    body = {"schedulerName": "default-scheduler", "containers": list(containers or (box(),)), **spec}
    return {"metadata": metadata, "spec": body | ({"initContainers": list(init)} if init else {})}


def request(body: Object, old: Object | None = None, *, operation: str = "CREATE", sub: str = "") -> Object:
    return {
        "uid": "1",
        "namespace": "default",
        "operation": operation,
        "object": body,
        "oldObject": old,
        "subResource": sub,
    }


def patched(body: Object, verdict: Verdict) -> Object:
    """The pod after the verdict's patch; only ``add`` is ever used."""
    body = copy.deepcopy(body)
    for operation in verdict.patch:
        assert operation["op"] == "add"
        *way, last = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]]
        place: Any = body
        for step in way:
            place = place[int(step)] if isinstance(place, list) else place[step]
        place[last] = operation["value"]
    return body


TWO = (box("left"), box("right"))
SIDECAR = box("proxy", restartPolicy="Always")
LONG = "a" * 254

ALLOWED: dict[str, tuple[Object, dict[str, str]]] = {
    "one container, its name": (pod({"main": "c"}), {"main": TICKET}),
    "one container, any name": (pod({"gpu": "c"}), {"main": TICKET}),
    "one of two containers": (pod({"left": "c"}, *TWO), {"left": TICKET}),
    "both containers, two claims": (pod({"left": "c", "right": "d"}, *TWO), {"left": TICKET, "right": TICKET}),
    "both containers, one claim": (pod({"left": "c", "right": "c"}, *TWO), {"left": TICKET, "right": TICKET}),
    "init container alone": (pod({"prepare": "c"}, init=(box("prepare"),)), {"prepare": INIT_TICKET}),
    "init container and container, two claims": (
        pod({"prepare": "c", "main": "d"}, init=(box("prepare"),)),
        {"prepare": INIT_TICKET, "main": TICKET},
    ),
    "two init containers, one claim": (
        pod({"a": "c", "b": "c"}, init=(box("a"), box("b"))),
        {"a": INIT_TICKET, "b": INIT_TICKET},
    ),
    "sidecar": (pod({"proxy": "c"}, init=(SIDECAR,)), {"proxy": TICKET}),
    "sidecar beside an init container, two claims": (
        pod({"proxy": "c", "a": "d"}, init=(SIDECAR, box("a"))),
        {"proxy": TICKET, "a": INIT_TICKET},
    ),
    "other limits are kept": (pod({"main": "c"}, box(**limits("cpu", "1"))), {"main": TICKET}),
    "our scheduler by name": (pod({"main": "c"}, schedulerName="egpu-scheduler"), {"main": TICKET}),
    "no scheduler": (pod({"main": "c"}, schedulerName=""), {"main": TICKET}),
    "claim name with dots": (pod({"main": "team.a-1"}), {"main": TICKET}),
    "longest claim name": (pod({"main": LONG[:253]}), {"main": TICKET}),
    "its own ticket written again": (pod({"main": "c"}, box(**limits("elasticgpu.io/slice", "1"))), {"main": TICKET}),
    "the label written again": (pod({"main": "c"}, meta={"labels": {MANAGED: "true"}}), {"main": TICKET}),
    "200 containers": (pod({"b7": "c"}, *(box(f"b{i}") for i in range(200))), {"b7": TICKET}),
    "no claim": (pod(), {}),
    "no claim, another scheduler": (pod(schedulerName="other"), {}),
    "no claim, node chosen": (pod(nodeName="node-a"), {}),
    "no claim, NVIDIA_VISIBLE_DEVICES": (pod(None, box(env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}])), {}),
    "another's resources": (pod(None, box(**limits("example.com/gpu", "1"))), {}),
    "another's annotations": (pod(meta={"annotations": {"xegpuc.elasticgpu.io/main": "c"}}), {}),
    "nothing in it": ({}, {}),
    "nulls": ({"metadata": {"annotations": None, "labels": None}, "spec": {"containers": None}}, {}),
}

REFUSED: dict[str, tuple[Object, str]] = {
    "unknown container": (pod({"middle": "c"}, *TWO), "one of: left, right"),
    "one known, one unknown": (pod({"left": "c", "x": "d"}, *TWO), "egpuc.elasticgpu.io/x names no container"),
    "any name beside an init container": (pod({"gpu": "c"}, init=(box("a"),)), "one of: a, main"),
    "several for one container": (pod({"main": "c", "gpu": "d"}), "keep one of them"),
    "claim of another namespace": (pod({"main": "other/c"}), "a claim is used in its own namespace; write c"),
    "claim of another namespace, odd": (pod({"main": "a/b/"}), "in its own namespace; write its name"),
    "claim in capitals": (pod({"main": "MyClaim"}), "write a name of small letters"),
    "claim empty": (pod({"main": ""}), "is not the name of an ElasticGPUClaim"),
    "claim with a line break": (pod({"main": "c\n"}), "is not the name of an ElasticGPUClaim"),
    "claim name too long": (pod({"main": LONG}), "is not the name of an ElasticGPUClaim"),
    "ticket by hand": (pod(None, box(**limits("elasticgpu.io/slice", "1"))), "not to be asked for by hand"),
    "init ticket by hand": (pod(None, box(**limits("elasticgpu.io/init-slice", "1"))), "leave it out and name a claim"),
    "two tickets": (pod({"main": "c"}, box(**limits("elasticgpu.io/slice", "2"))), "elasticgpu.io/slice is not to be"),
    "wrong ticket": (pod({"main": "c"}, box(**limits("elasticgpu.io/init-slice", "1"))), "init-slice is not to be"),
    "ticket in requests": (pod(None, box(resources={"requests": {TICKET: 1}})), "not to be asked for by hand"),
    "ticket for the other container": (
        pod({"left": "c"}, box("left"), box("right", **limits("elasticgpu.io/slice", "1"))),
        "egpuc.elasticgpu.io/right: <claim>",
    ),
    "ticket in an init container": (
        pod(None, init=(box("a", **limits("elasticgpu.io/init-slice", "1")),)),
        "container a",
    ),
    "core in the pod": (pod(None, box(**limits("elasticgpu.io/gpu-core", "25"))), "make an ElasticGPUClaim with"),
    "memory in the pod": (pod(None, box(**limits("elasticgpu.io/gpu-memory", "4Gi"))), "elasticgpu.io/gpu-memory"),
    "provisioner's key in the pod": (
        pod(None, box(**limits("gpushare.provisioner.elasticgpu.io/gpu-core", "25"))),
        "under spec.resources.requests",
    ),
    "amounts beside a claim": (
        pod({"main": "c"}, box(**limits("elasticgpu.io/gpu-core", "25"))),
        "cannot be asked for",
    ),
    "unknown resource of ours": (
        pod(None, box(**limits("elasticgpu.io/gpu", "1"))),
        "there is no resource elasticgpu.io/gpu",
    ),
    "slice annotation": (
        pod({"main": "c"}, meta={"annotations": {"status.elasticgpu.io/main": "s"}}),
        "is bound; leave",
    ),
    "slice annotation without a claim": (pod(meta={"annotations": {"status.elasticgpu.io/x": ""}}), "leave it out"),
    "label without a claim": (pod(meta={"labels": {MANAGED: "true"}}), "leave it out"),
    "label false without a claim": (pod(meta={"labels": {MANAGED: "false"}}), "is Elastic GPU's own"),
    "another scheduler": (pod({"main": "c"}, schedulerName="mine"), "schedulerName mine books no slices"),
    "node chosen": (pod({"main": "c"}, nodeName="node-a"), "choose the node by nodeSelector"),
    "init containers of two claims": (pod({"a": "c", "b": "d"}, init=(box("a"), box("b"))), "here are several: c, d"),
}


@pytest.mark.parametrize(("body", "tickets"), ALLOWED.values(), ids=ALLOWED)
def test_allowed(body: Object, tickets: dict[str, str]) -> None:
    verdict = mutate_pod(request(body))
    assert verdict.allowed, verdict.message
    after = patched(body, verdict)
    _only_added(body, after)
    shown = {
        found.name: key for found in pods.boxes(after) for key, amount in found.amounts() if "elasticgpu.io" in key
    }
    assert shown == tickets
    assert validate_pod(request(after)) == Verdict()
    if tickets:
        assert after["metadata"]["labels"][MANAGED] == "true"
        assert after["spec"]["schedulerName"] == "egpu-scheduler"
        assert all(VOID in found.raw["env"] for found in pods.boxes(after))
    assert mutate_pod(request(after)).patch == (), "doing it twice is doing it once"


def _only_added(before: Any, after: Any) -> None:
    """Whatever was there is still there, except the scheduler and NVIDIA_VISIBLE_DEVICES."""
    if isinstance(before, dict):
        for key in before:
            if key != "schedulerName":
                _only_added(before[key], after[key])
    elif isinstance(before, list):
        kept = [item for item in before if not (isinstance(item, dict) and item.get("name") == pods.VISIBLE)]
        for item, found in zip(kept, after, strict=False):
            _only_added(item, found)
    else:
        assert before == after


@pytest.mark.parametrize(("body", "words"), REFUSED.values(), ids=REFUSED)
def test_refused(body: Object, words: str) -> None:
    for judge in (mutate_pod, validate_pod):
        verdict = judge(request(body))
        assert not verdict.allowed
        assert words in verdict.message


@pytest.mark.parametrize("case", ALLOWED)
def test_claims_are_read_as_everywhere_else(case: str) -> None:
    body = ALLOWED[case][0]
    if body.get("metadata", {}).get("name") is None:
        return
    assert pods.claims(body) == Pod.parse({"kind": "Pod", **body}).claims


ENVIRONMENTS: dict[str, tuple[list[Object] | None, list[Object]]] = {
    "none": (None, [VOID]),
    "set to all": ([{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}], [VOID]),
    "set twice": ([{"name": "NVIDIA_VISIBLE_DEVICES", "value": "0"}, {"name": "A"}, VOID], [{"name": "A"}, VOID]),
    "from a secret": ([{"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": {"secretKeyRef": {}}}], [VOID]),
    "others stay": (
        [{"name": "CUDA_VISIBLE_DEVICES", "value": "0"}],
        [{"name": "CUDA_VISIBLE_DEVICES", "value": "0"}, VOID],
    ),
}


@pytest.mark.parametrize(("before", "after"), ENVIRONMENTS.values(), ids=ENVIRONMENTS)
def test_visible_devices(before: list[Object] | None, after: list[Object]) -> None:
    body = pod({"main": "c"}, box(**({} if before is None else {"env": before})))
    assert patched(body, mutate_pod(request(body)))["spec"]["containers"][0]["env"] == after


def test_a_label_beside_others_and_an_escaped_path() -> None:
    body = pod({"main": "c"}, meta={"labels": {"app": "x"}})
    assert patched(body, mutate_pod(request(body)))["metadata"]["labels"] == {"app": "x", MANAGED: "true"}
    assert mutate.ESCAPED_LABEL == "elasticgpu.io~1managed"


WARNINGS: dict[str, tuple[Object, Observed, str | None]] = {
    "claim there": (pod({"main": "c"}), Observed(), None),
    "claim missing": (pod({"main": "c"}), Observed(missing=frozenset({"c"})), "c does not exist in namespace default"),
    "claim deleting": (pod({"main": "c"}), Observed(deleting=frozenset({"c"})), "c is being deleted"),
    "privileged": (pod({"main": "c"}, box(securityContext={"privileged": True})), Observed(), "is privileged"),
    "privileged without a claim": (pod(None, box(securityContext={"privileged": True})), Observed(), None),
    "variable taken": (
        pod(None, box(env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}])),
        Observed(),
        "set to void",
    ),
    "variable void": (pod(None, box(env=[VOID])), Observed(), None),
}


@pytest.mark.parametrize(("body", "observed", "words"), WARNINGS.values(), ids=WARNINGS)
def test_warnings(body: Object, observed: Observed, words: str | None) -> None:
    verdict = mutate_pod(request(body), observed)
    assert verdict.allowed
    assert words in verdict.warnings[0] if words else not verdict.warnings


STORED = pod(
    {"main": "c"},
    box(env=[VOID], resources={"limits": {TICKET: "1"}, "requests": {TICKET: "1"}}),
    meta={"labels": {MANAGED: "true"}},
    schedulerName="egpu-scheduler",
)


def without(body: Object, *path: str) -> Object:
    body = copy.deepcopy(body)
    place = body
    for step in path[:-1]:
        place = place[int(step)] if isinstance(place, list) else place[step]
    del place[path[-1]]
    return body


STRIPPED: dict[str, tuple[Object, str]] = {
    "scheduler": (without(STORED, "spec", "schedulerName"), "schedulerName is not egpu-scheduler"),
    "label": (without(STORED, "metadata", "labels"), "managed is missing"),
    "tickets": (without(STORED, "spec", "containers", "0", "resources"), "has no elasticgpu.io/slice"),
    "ticket in requests": (without(STORED, "spec", "containers", "0", "resources", "requests"), "has no elasticgpu"),
    "variable": (without(STORED, "spec", "containers", "0", "env"), "NVIDIA_VISIBLE_DEVICES is not void"),
    "variable of a pod without a claim": (
        pod(None, box(env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}])),
        "NVIDIA_VISIBLE_DEVICES is not void",
    ),
}


@pytest.mark.parametrize(("body", "words"), STRIPPED.values(), ids=STRIPPED)
def test_what_a_later_webhook_took_away_is_missed(body: Object, words: str) -> None:
    verdict = validate_pod(request(body))
    assert not verdict.allowed
    assert words in verdict.message
    assert "another admission webhook" in verdict.message


def annotated(**changes: str | None) -> Object:
    body = copy.deepcopy(STORED)
    for key, value in changes.items():
        name = key.replace("__", "/").replace("_", ".")
        if value is None:
            del body["metadata"]["annotations"][name]
        else:
            body["metadata"]["annotations"][name] = value
    return body


UPDATES: dict[str, tuple[Object, Object, bool]] = {
    "nothing": (STORED, STORED, True),
    "another annotation": (STORED, annotated(example_com__a="b"), True),
    "the operator's mark to try again": (STORED, annotated(elasticgpu_io__retry="now"), True),
    "another label": (
        STORED,
        STORED | {"metadata": {**STORED["metadata"], "labels": {MANAGED: "true", "a": "b"}}},
        True,
    ),
    "another claim": (STORED, annotated(egpuc_elasticgpu_io__main="d"), False),
    "claim removed": (STORED, annotated(egpuc_elasticgpu_io__main=None), False),
    "claim added": (pod(), pod({"main": "c"}), False),
    "slice annotation added": (STORED, annotated(status_elasticgpu_io__main="s"), False),
    "label removed": (STORED, without(STORED, "metadata", "labels"), False),
    "label added": (pod(), pod(meta={"labels": {MANAGED: "true"}}), False),
}


@pytest.mark.parametrize(("old", "new", "allowed"), UPDATES.values(), ids=UPDATES)
def test_marks_do_not_change_later(old: Object, new: Object, *, allowed: bool) -> None:
    verdict = validate_pod(request(new, old, operation="UPDATE"))
    assert verdict.allowed is allowed
    assert allowed or "delete the pod and create it" in verdict.message
    assert mutate_pod(request(new, old, operation="UPDATE")) == Verdict()


def with_debugger(body: Object, *env: Object) -> Object:
    body = copy.deepcopy(body)
    body["spec"]["ephemeralContainers"] = [box("debug", **({"env": list(env)} if env else {}))]
    return body


@pytest.mark.parametrize(
    ("old", "env", "after"),
    [
        (STORED, (), [VOID]),
        (STORED, ({"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"},), [VOID]),
        (pod(), ({"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"},), [VOID]),
        (pod(), (), None),
    ],
    ids=["managed", "managed with all", "other with all", "other"],
)
def test_ephemeral_containers(old: Object, env: tuple[Object, ...], after: list[Object] | None) -> None:
    body = with_debugger(old, *env)
    asked = request(body, old, operation="UPDATE", sub="ephemeralcontainers")
    done = patched(body, mutate_pod(asked))
    assert done["spec"]["ephemeralContainers"][0].get("env") == after
    assert validate_pod(request(done, old, operation="UPDATE", sub="ephemeralcontainers")).allowed
    if after != list(env) and after:
        assert not validate_pod(asked).allowed


def test_a_running_ephemeral_container_is_left_alone() -> None:
    old = with_debugger(STORED, {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"})
    asked = request(old, old, operation="UPDATE", sub="ephemeralcontainers")
    assert mutate_pod(asked).patch == ()
    assert validate_pod(asked).allowed
