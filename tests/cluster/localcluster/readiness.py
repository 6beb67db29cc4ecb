"""Whether a cluster that comes up is there yet, and why not if it never will be."""

from __future__ import annotations

import json
import ssl
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from localcluster import constants, control, probes
from localcluster.errors import ClusterError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from localcluster.spec import ClusterSpec


@dataclass(frozen=True, slots=True)
class Condition:
    """Something that is to become true."""

    text: str
    holds: Callable[[], bool]


def get(spec: ClusterSpec, path: str) -> Any:
    """GET from kube-apiserver as administrator. Raises OSError when it does not answer, or not with 200."""
    pki = spec.folder / "pki"
    context = ssl.create_default_context(cafile=str(pki / "ca.crt"))
    context.load_cert_chain(pki / "admin.crt", pki / "admin.key")
    handlers = (urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
    with urllib.request.build_opener(*handlers).open(f"https://127.0.0.1:{spec.host_port}{path}", timeout=5) as reply:
        return json.load(reply)


def conditions(spec: ClusterSpec) -> tuple[Condition, ...]:
    """What makes a cluster ready, in the order in which it comes."""
    account = "/api/v1/namespaces/default/serviceaccounts/default"
    core = (
        Condition("kube-apiserver answers", partial(_found, spec, "/api/v1/namespaces/default")),
        Condition("pods can be made", partial(_found, spec, account)),
    )
    if not spec.nodes:
        return core
    dns = f"tcp://{constants.CONTROL_PLANE_IP}:53"
    return (
        *core,
        *(Condition(f"{node.name} is Ready", partial(_node_ready, spec, node.name)) for node in spec.nodes),
        *(Condition(f"{node.name} has its images", partial(_once_done, spec, node.name)) for node in spec.nodes),
        Condition("names resolve", lambda: bool(control.call(spec.folder, "answers", address=dns))),
    )


def wait(spec: ClusterSpec, *, deadline: float, alive: Callable[[], None]) -> Iterator[str]:
    """Wait for each condition in turn and yield its text.

    Args:
        spec: The cluster.
        deadline: By the monotonic clock.
        alive: Raises when there is nothing left to wait for.

    Raises:
        ClusterError: A program ended, or time ran out.
    """
    for condition in conditions(spec):
        while not probes.wait(condition.holds, timeout=0.5):
            alive()
            _check_programs(spec)
            if time.monotonic() > deadline:
                where = f"{spec.folder}/log and {spec.folder}/nodes/*/log"
                raise ClusterError(f"not so in time: {condition.text}. The logs are in {where}")
        yield condition.text


def tail(log: Path) -> str:
    """The last lines of a log, for a message."""
    lines = log.read_text(errors="replace").splitlines()[-12:] if log.exists() else []
    return "\n  ".join([f"the last lines of {log} are", *lines])


def _found(spec: ClusterSpec, path: str) -> bool:
    try:
        get(spec, path)
    except OSError:
        return False
    return True


def _node_ready(spec: ClusterSpec, name: str) -> bool:
    try:
        found = get(spec, f"/api/v1/nodes/{name}")["status"].get("conditions", [])
    except OSError:
        return False
    return any(item["type"] == "Ready" and item["status"] == "True" for item in found)


def _once_done(spec: ClusterSpec, name: str) -> bool:
    status = control.call(spec.node_folder(name), "status")
    return all(item["exit_code"] == 0 for item in status.values() if item["once"])


def _check_programs(spec: ClusterSpec) -> None:
    for folder in (spec.folder, *(spec.node_folder(node.name) for node in spec.nodes)):
        try:
            status = control.call(folder, "status")
        except ClusterError:
            # Not there yet; if it never will be, its parent's status or the deadline says so.
            continue
        for name, item in status.items():
            if item["exit_code"] is not None and (item["exit_code"] or not item["once"]):
                raise ClusterError(f"{name} ended with {item['exit_code']}: {tail(folder / 'log' / f'{name}.log')}")
