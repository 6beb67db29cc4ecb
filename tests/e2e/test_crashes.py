"""Parts die at bad moments: everything converges, nothing is booked twice, nothing leaks (the stack fixture looks)."""

import itertools
import json
import re
from collections import defaultdict

import pytest

from egpu_testing import leftovers, objects, truth
from egpu_testing.stack import SYSTEM, Stack
from egpu_testing.waiting import until
from localcluster.cluster import LocalCluster, Node
from localcluster.errors import ClusterError

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

GIB = 1024**3
ON_A = {"nodeSelector": {"kubernetes.io/hostname": "node-a"}}


@pytest.fixture
def node(nodes: tuple[Node, ...]) -> Node:
    """The node that things happen on."""
    return next(node for node in nodes if node.name == "node-a")


def _tickets(stack: Stack) -> int:
    return int(stack.get("node", "node-a")["status"]["allocatable"].get("elasticgpu.io/slice", "0"))


def _uid(stack: Stack, pod: str) -> str:
    return str(stack.get("pod", pod)["metadata"]["uid"])


def _holders(node: Node, pod_uid: str) -> list[int]:
    """Node-wide pids of the pod's processes that hold memory of a card now."""
    rows = (row for row in truth.read(node).in_cgroup(f"pod{pod_uid}") if row.alive)
    return [row.pid for row in rows if any(usage.data for usage in row.cards.values())]


def _run(stack: Stack, name: str, *, core: int = 10, memory: str = "1Gi", mib: str = "100") -> str:
    stack.apply(objects.claim(name, core=core, memory=memory))
    stack.apply(objects.pod(name, {"main": name}, containers=[objects.container(command=[objects.PROBE, mib])], **ON_A))
    stack.running(name, timeout=90)
    return _uid(stack, name)


def _kill(node: Node, pattern: str) -> None:
    node.exec("pkill", "-9", "-f", pattern)


def assert_never_double_booked(stack: Stack) -> None:
    """The bookings of each card fit the card, and each slice's booking says what the slice says."""
    slices = {item["metadata"]["name"]: item for item in stack.list("egpu")}
    for shown in stack.list("egpun"):
        booked: dict[str, int] = defaultdict(int)
        for uuid, entry in shown["spec"].get("bookings", {}).items():
            booked[uuid] += sum(item["core"] for item in entry["slices"].values())
            assert set(entry["slices"]) <= set(slices)
        assert all(total <= 100 for total in booked.values())


def test_kubelet_restarts_and_pods_go_on(stack: Stack, node: Node) -> None:
    before = _run(stack, "before")
    node.kill("kubelet")
    node.start("kubelet")
    _run(stack, "after")
    assert _uid(stack, "before") == before
    assert _holders(node, before)


def test_kubelet_restarts_while_the_agent_is_dead(stack: Stack, node: Node) -> None:
    _run(stack, "before")
    node.kill("kubelet")
    _kill(node, "egpu[-_]agent")
    node.start("kubelet")
    _run(stack, "after")
    stack.rollout("daemonset/egpu-agent")


def test_the_agent_dies_and_kubelet_knows_its_tickets_again(stack: Stack, node: Node) -> None:
    before = _run(stack, "before")
    _kill(node, "egpu[-_]agent")
    _run(stack, "after")
    assert _holders(node, before)
    until("the tickets are back", lambda: _tickets(stack) == 1024, timeout=60)


def test_a_container_restarts_with_the_api_server_down(stack: Stack, local: LocalCluster, node: Node) -> None:
    uid = _run(stack, "restarting")
    first = _holders(node, uid)
    local.stop("kube-apiserver")
    try:
        for pid in first:
            node.exec("kill", "-9", str(pid))
        until("another process of the pod holds memory", lambda: set(_holders(node, uid)) - set(first), timeout=90)
    finally:
        local.start("kube-apiserver")
    until("the API server answers", lambda: stack.get("pod", "restarting"), timeout=60)
    assert truth.peak(node, uid) <= 2 * GIB


def test_a_force_deleted_pod_keeps_its_room_until_its_process_is_gone(stack: Stack, node: Node) -> None:
    uid = _run(stack, "stubborn", core=60)
    bound = stack.get("egpuc", "stubborn")["status"]["egpuName"]
    node.kill("kubelet")
    try:
        stack.delete("pod", "stubborn", force=True, wait=False)
        stack.gone("pod", "stubborn")
        stack.delete("egpuc", "stubborn", wait=False)
        until("release is asked for", lambda: stack.get("egpu", bound)["spec"].get("consumer", {}).get("releasing"))
        for _ in range(20):
            assert _holders(node, uid)
            assert any(bound in line for line in leftovers.bookings(stack))
    finally:
        node.start("kubelet")
    stack.gone("egpu", bound, timeout=90)
    assert not _holders(node, uid)


def test_churn_while_operator_and_agent_are_killed(stack: Stack, nodes: tuple[Node, ...]) -> None:
    """Deployments, since kubelet refuses a pod for good whose plug-in dies between binding and admission."""
    names = [f"churn-{i}" for i in range(16)]
    patterns = itertools.cycle(["egpu[-_]operator", "egpu[-_]agent"])
    for batch in range(4):
        chosen = names[batch * 4 : batch * 4 + 4]
        stack.apply(*(objects.claim(name, core=5, memory="512Mi") for name in chosen))
        stack.apply(*(objects.deployment(objects.pod(name, {"main": name}, **ON_A)) for name in chosen))
        pattern = next(patterns)
        for each in nodes:
            each.exec("pkill", "-9", "-f", pattern, check=False)
    for name in names:
        stack.cluster.kubectl("wait", "--for=condition=Available", f"deployment/{name}", "--timeout=180s")
    assert_never_double_booked(stack)
    assert len(stack.list("egpu")) == len(names)


def test_without_an_agent_a_pod_waits_and_then_runs(stack: Stack, node: Node) -> None:
    assert node
    selector = "/spec/template/spec/nodeSelector"
    away = json.dumps([{"op": "add", "path": selector, "value": {"nowhere": "true"}}])
    back = json.dumps([{"op": "remove", "path": selector}])
    patch = ("-n", SYSTEM, "patch", "daemonset", "egpu-agent", "--type=json", "-p")
    stack.cluster.kubectl(*patch, away)
    try:
        until("no agent is left", lambda: not _system_pods(stack, "agent"))
        stack.apply(objects.claim("c", core=10, memory="1Gi"), objects.pod("waits", {"main": "c"}))
        missing = re.compile("agent not ready|Insufficient elasticgpu.io/slice")
        until("its event says what is missing", lambda: missing.search(stack.events("waits")))
        stack.apply(objects.pod("bystander"))
        stack.running("bystander")
    finally:
        stack.cluster.kubectl(*patch, back)
    stack.rollout("daemonset/egpu-agent")
    stack.running("waits", timeout=90)


def test_without_the_webhook_claims_are_refused_and_other_pods_start(stack: Stack) -> None:
    stack.cluster.kubectl("-n", SYSTEM, "scale", "deployment/egpu-operator", "--replicas=0")
    try:
        until("no operator is left", lambda: not _system_pods(stack, "operator"))
        stack.apply(objects.pod("bystander"))
        stack.running("bystander")
        with pytest.raises(Exception, match="webhook"):
            stack.apply(objects.pod("asks", {"main": "c"}))
    finally:
        stack.cluster.kubectl("-n", SYSTEM, "scale", "deployment/egpu-operator", "--replicas=1")
        stack.rollout("deployment/egpu-operator")
    until("admission answers again", lambda: _admitted(stack), timeout=60)


def _system_pods(stack: Stack, part: str) -> list[str]:
    names = [pod["metadata"]["name"] for pod in stack.list("pods", namespace=SYSTEM)]
    return [name for name in names if part in name]


def _admitted(stack: Stack) -> bool:
    asks = json.dumps(objects.pod("asks", {"main": "c"}))
    try:
        stack.cluster.kubectl("create", "--dry-run=server", "-f", "-", stdin=asks)
    except ClusterError as error:
        return "webhook" not in str(error)
    return True
