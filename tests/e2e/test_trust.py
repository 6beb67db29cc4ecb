"""Nothing that a pod writes about itself gives it more than its own slice."""

import contextlib
import threading
from collections.abc import Iterator

import pytest

from egpu_testing import objects
from egpu_testing.stack import Stack
from egpu_testing.waiting import until
from localcluster.cluster import Node
from localcluster.errors import ClusterError

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

STALE = 1000
TENANTS = 10


def _said(stack: Stack, pod: str) -> str:
    until(f"{pod} has spoken", lambda: "ready" in stack.logs(pod), timeout=60)
    return stack.logs(pod)


@pytest.fixture
def victim(stack: Stack) -> str:
    """The slice of another pod, which runs."""
    stack.apply(objects.claim("theirs", core=50, memory="8Gi"), objects.pod("victim", {"main": "theirs"}))
    stack.running("victim")
    return str(stack.get("egpuc", "theirs")["status"]["egpuName"])


@pytest.mark.parametrize(
    "annotations",
    [
        {"status.elasticgpu.io/main": "SLICE"},
        {"elasticgpu.io/slice": "SLICE"},
        {"cdi.k8s.io/x": "elasticgpu.io/slice=SLICE"},
    ],
    ids=["status", "slice", "cdi"],
)
def test_forged_annotations_give_nothing(stack: Stack, victim: str, annotations: dict[str, str]) -> None:
    forged = {key: value.replace("SLICE", victim) for key, value in annotations.items()}
    try:
        stack.apply(objects.pod("forger", annotations=forged))
    except ClusterError as error:
        assert "elasticgpu.io" in str(error)  # noqa: PT017 - refused at apply is an answer too
        return
    assert "page none" in _said(stack, "forger")


@pytest.mark.parametrize("name", ["NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "ELASTICGPU_SLICE"])
def test_forged_environment_gives_nothing(stack: Stack, victim: str, name: str) -> None:
    value = victim if name == "ELASTICGPU_SLICE" else "all"
    stack.apply(objects.pod("forger", containers=[objects.container(env={name: value}, command=[objects.PROBE, "10"])]))
    said = _said(stack, "forger")
    assert "page none" in said
    assert "driver none" in said


def test_a_pod_with_a_small_slice_cannot_name_a_larger_one(stack: Stack, victim: str) -> None:
    stack.apply(objects.claim("mine", core=10, memory="1Gi"))
    stack.apply(
        objects.pod("forger", {"main": "mine"}, containers=[objects.container(command=[objects.PROBE, "2048"])])
    )
    stack.running("forger")
    assert f"total {1024**3}" in _said(stack, "forger")
    assert "alloc 2048 2" in _said(stack, "forger")
    with pytest.raises(ClusterError, match=r"egpuc\.elasticgpu\.io"):
        stack.cluster.kubectl("annotate", "--overwrite", "pod", "forger", "egpuc.elasticgpu.io/main=theirs")
    assert victim != stack.get("egpuc", "mine")["status"]["egpuName"]


@contextlib.contextmanager
def halting(node: Node, program: str) -> Iterator[None]:
    """Stops a program and lets it go on, over and over: what it is told by inotify reaches it late and in heaps."""
    over = threading.Event()

    def work() -> None:
        while not over.is_set():
            for signal in ("-STOP", "-CONT"):
                node.exec("pkill", signal, "-x", program)
                over.wait(0.3)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        node.exec("pkill", "-CONT", "-x", program)


def test_stale_specs_and_late_inotify_never_give_another_tenants_slice(stack: Stack, nodes: tuple[Node, ...]) -> None:
    node = next(node for node in nodes if node.name == "node-a")
    script = (
        f"for i in $(seq {STALE}); do n=$(printf 'stale%028d' $i); "
        'printf \'{"cdiVersion":"0.6.0","kind":"elasticgpu.io/slice","devices":[{"name":"%s","containerEdits":'
        '{"env":["STOLEN=%s"]}}]}\' $n $n > /var/run/cdi/elasticgpu.io-slice-$n.json; done'
    )
    node.exec("sh", "-c", script)
    stack.create([objects.claim(f"c-{i}", core=1, memory=f"{500 + i}Mi") for i in range(TENANTS)])
    show = [objects.container(command=["/bin/sh", "-c", f"env | grep STOLEN; exec {objects.PROBE} 1"])]
    where = {"nodeSelector": {"kubernetes.io/hostname": "node-a"}}
    with halting(node, "containerd"):
        stack.create([objects.pod(f"p-{i}", {"main": f"c-{i}"}, containers=show, **where) for i in range(TENANTS)])
        stack.running(*(f"p-{i}" for i in range(TENANTS)), timeout=120)
    for i in range(TENANTS):
        said = _said(stack, f"p-{i}")
        assert "STOLEN" not in said
        assert f"total {(500 + i) * 1024**2}" in said
    node.exec("sh", "-c", "rm -f /var/run/cdi/elasticgpu.io-slice-stale*")
