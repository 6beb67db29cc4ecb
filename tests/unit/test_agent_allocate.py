"""Which container starts, and with whose slice."""

from typing import Any

import pytest

from egpu.types import Slice
from egpu_agent import allocate
from egpu_agent.allocate import Refused, Start
from egpu_agent.checkpoint import Attachment, Ticket
from egpu_agent.kubelet import Entry

POD, OTHER = "11111111-0000-4000-8000-000000000001", "22222222-0000-4000-8000-000000000002"
TICKET, INIT = "elasticgpu.io/slice", "elasticgpu.io/init-slice"
START = Start(pod_uid=POD, container="main", resource=TICKET, ids=("slice-1",), nonce="n1")


def _entry(pod: str = POD, container: str = "main", nonce: str | None = "n1", resource: str = TICKET) -> Entry:
    return Entry(pod_uid=pod, container=container, resource=resource, ids=frozenset(["slice-1"]), nonce=nonce)


def _slice(name: str = "egpu-1", *, node: str = "here", deleting: bool = False, **consumer: Any) -> Slice:
    usual = {"podUID": POD, "podName": "trainer", "podNamespace": "default", "containers": ["main"]}
    meta = {"name": name, "uid": f"uid-{name}"} | ({"deletionTimestamp": "2026-01-01T00:00:00Z"} if deleting else {})
    spec = {
        "nodeName": node,
        "cards": [{"uuid": "GPU-1", "core": 25, "memory": "1Gi"}],
        "consumer": usual | consumer if consumer is not None else None,
    }
    return Slice.parse({"metadata": meta, "spec": spec})


def _attachment(*, revoked: bool = False, pod: str = POD, container: str = "main") -> Attachment:
    fresh = allocate.attach(START, _slice())
    return fresh.model_copy(update={"revoked": revoked, "pod_uid": pod, "container": container})


def _ticket(
    nonce: str = "n1", *, time: float = 0.0, attachment: Attachment | None = None, ids: str = "slice-1"
) -> Ticket:
    return Ticket(nonce=nonce, resource=TICKET, ids=(ids,), time=time, attachment=attachment)


def test_one_holder_is_the_one_that_starts() -> None:
    assert allocate.starts([_entry()], ids=["slice-1"]) == (START,)


def test_init_containers_that_share_ids_are_all_made_ready() -> None:
    entries = [_entry(container="a", nonce="na", resource=INIT), _entry(container="b", nonce="nb", resource=INIT)]
    found = allocate.starts(entries, ids=["slice-1"])
    assert [(start.container, start.nonce) for start in found] == [("a", "na"), ("b", "nb")]


@pytest.mark.parametrize(
    ("entries", "says"),
    [
        pytest.param([], "names no container for the tickets slice-1", id="nobody"),
        pytest.param([_entry(), _entry(pod=OTHER)], "several pods", id="two-pods"),
        pytest.param([_entry(nonce=None)], "no elasticgpu.io/slice device for container main", id="no-nonce"),
    ],
)
def test_who_starts_is_never_guessed(entries: list[Entry], says: str) -> None:
    with pytest.raises(Refused, match=says):
        allocate.starts(entries, ids=["slice-1"])


@pytest.mark.parametrize(
    ("slices", "name"),
    [
        pytest.param([_slice()], "egpu-1", id="its-own"),
        pytest.param([_slice("other", containers=["side"]), _slice("mine")], "mine", id="by-container"),
        pytest.param([_slice(podUID=OTHER)], None, id="same-name-other-uid"),
        pytest.param([_slice(containers=["side"])], None, id="another-container"),
        pytest.param([_slice(node="elsewhere")], None, id="another-node"),
        pytest.param([_slice(podUID=OTHER, releasing=True)], None, id="another-pod's-release"),
        pytest.param([], None, id="none"),
    ],
)
def test_the_slice_is_the_consumers_and_no_other(slices: list[Slice], name: str | None) -> None:
    found = allocate.slice_for(START, slices, node="here")
    assert (found.metadata.name if found else None) == name


def test_a_slice_without_consumer_is_nobodys() -> None:
    free = _slice().model_copy(update={"spec": _slice().spec.model_copy(update={"consumer": None})})
    assert allocate.slice_for(START, [free], node="here") is None


@pytest.mark.parametrize("taken", [_slice(releasing=True), _slice(deleting=True)])
def test_a_slice_being_taken_back_refuses(taken: Slice) -> None:
    with pytest.raises(Refused, match="egpu-1 is being released"):
        allocate.slice_for(START, [taken], node="here")


def test_a_restart_is_known_by_its_nonce() -> None:
    attachment = _attachment()
    assert allocate.known(START, {"n1": _ticket(attachment=attachment)}) == attachment
    assert allocate.known(START, {"n1": _ticket()}) is None
    assert allocate.known(START, {}) is None


def test_a_revoked_nonce_never_starts_again() -> None:
    with pytest.raises(Refused, match="being released"):
        allocate.known(START, {"n1": _ticket(attachment=_attachment(revoked=True))})


def test_without_kubelets_checkpoint_only_the_newest_answer_counts() -> None:
    old, new = _ticket("old", time=1, attachment=_attachment()), _ticket("new", time=2, attachment=_attachment())
    (start,) = allocate.starts_from_memory([new, old], resource=TICKET, ids=["slice-1"])
    assert start.nonce == "new"
    with pytest.raises(Refused):
        allocate.starts_from_memory([old, _ticket("new", time=2)], resource=TICKET, ids=["slice-1"])
    with pytest.raises(Refused):
        allocate.starts_from_memory([new], resource=TICKET, ids=["slice-2"])


@pytest.mark.parametrize(
    ("note", "attached"),
    [
        pytest.param({}, False, id="no-spec"),
        pytest.param({"n1": _attachment()}, True, id="spec-of-this-container"),
        pytest.param({"n1": _attachment(pod=OTHER)}, False, id="spec-of-another-pod"),
        pytest.param({"n1": _attachment(container="side")}, False, id="spec-of-another-container"),
        pytest.param({"n9": _attachment()}, False, id="spec-of-another-nonce"),
    ],
)
def test_rebuilt_from_kubelet_and_specs(note: dict[str, Attachment], attached: bool) -> None:  # noqa: FBT001
    found = allocate.rebuilt([_entry(), _entry(nonce=None)], note)
    assert set(found) == {"n1"}
    assert (found["n1"].attachment is not None) is attached


def test_forgotten_are_answers_nobody_kept() -> None:
    tickets = [
        _ticket("kept", time=0),
        _ticket("young", time=95),
        _ticket("attached", time=0, attachment=_attachment()),
        _ticket("lost", time=0),
    ]
    assert allocate.forgotten(tickets, [_entry(nonce="kept")], now=100, age=60) == ["lost"]
