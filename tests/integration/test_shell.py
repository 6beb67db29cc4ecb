"""The operator's own process, as its ServiceAccount: leads, serves, lets go; certificates live on without a restart."""

import http.client
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
from base64 import b64decode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import pytest
import yaml

from egpu_operator import certs
from egpu_shell import Shell, configurations
from egpu_testing.stack import ROOT
from egpu_testing.waiting import until
from localcluster import LocalCluster

pytestmark = pytest.mark.integration

SYSTEM = "elasticgpu-system"
POD = {
    "metadata": {"name": "p", "namespace": "default", "uid": "u", "annotations": {"egpuc.elasticgpu.io/main": "c"}},
    "spec": {"containers": [{"name": "main"}]},
}
FILTER = {"Pod": POD, "NodeNames": ["node-a"]}


class Process:
    """``python -m egpu_operator`` on ports of its own."""

    def __init__(self, cluster: LocalCluster, folder: Path, name: str) -> None:
        self.name = name
        self.webhook, self.health = free_port(), free_port()
        token = cluster.kubectl("-n", SYSTEM, "create", "token", "egpu-operator").strip()
        config = yaml.safe_load(Path(cluster.kubeconfig).read_text())
        config["users"][0]["user"] = {"token": token}
        self._kubeconfig = folder / f"{name}.kubeconfig"
        self._kubeconfig.write_text(yaml.safe_dump(config))
        self._settings = folder / f"{name}.yaml"
        self._settings.write_text(
            f"address: 127.0.0.1\nwebhookPort: {self.webhook}\nhealthPort: {self.health}\n"
            "logFormat: json\nleader: {lease: 3, deadline: 2, retry: 0.2}\n"
        )
        self._log = folder / f"{name}.log"

    def start(self) -> Self:
        environment = {
            **os.environ,
            "KUBECONFIG": str(self._kubeconfig),
            "POD_NAME": self.name,
            "POD_NAMESPACE": SYSTEM,
        }
        command = [sys.executable, "-m", "egpu_operator", "--config", str(self._settings)]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, env=environment, stderr=log)
        return self

    def end(self, number: int = signal.SIGTERM) -> int:
        self._process.send_signal(number)
        return self._process.wait(timeout=20)

    def running(self) -> bool:
        return self._process.poll() is None

    def ready(self) -> bool:
        return self.probe("readyz") == 200

    def probe(self, path: str) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", self.health, timeout=5)
        try:
            connection.request("GET", f"/{path}")
            return connection.getresponse().status
        except OSError:
            return 0
        finally:
            connection.close()

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._log.read_text().splitlines()]


def free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


@pytest.fixture(scope="module")
def installed(control_plane: LocalCluster) -> Iterator[LocalCluster]:
    for name in ("00-namespace.yaml", "10-rbac.yaml", "20-operator.yaml", "30-scheduler.yaml"):
        control_plane.kubectl("apply", "-f", str(ROOT / "manifests" / name))
    yield control_plane
    for kind in ("mutating", "validating"):
        control_plane.kubectl("delete", f"{kind}webhookconfiguration", "egpu-operator", "--ignore-not-found")


@pytest.fixture
def process(installed: LocalCluster, tmp_path: Path) -> Iterator[Callable[[str], Process]]:
    started: list[Process] = []

    def start(name: str) -> Process:
        started.append(Process(installed, tmp_path, name))
        installed.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(configurations(started[-1].webhook)))
        return started[-1].start()

    yield start
    for each in started:
        if each.running():
            each.end()


def secret(cluster: LocalCluster, name: str) -> dict[str, bytes]:
    found = json.loads(cluster.kubectl("-n", SYSTEM, "get", "secret", name, "-o", "json"))
    return {key: b64decode(value) for key, value in found["data"].items()}


def holder(cluster: LocalCluster) -> str:
    found = json.loads(cluster.kubectl("-n", SYSTEM, "get", "leases", "-o", "json"))["items"]
    return next((item["spec"].get("holderIdentity", "") for item in found), "")


class Caller:
    """An HTTPS client that trusts what the scheduler's Secret says, with its certificate or without."""

    def __init__(self, cluster: LocalCluster, folder: Path, *, certified: bool) -> None:
        data = secret(cluster, "egpu-scheduler-client")
        self.context = ssl.create_default_context(cadata=data["ca.crt"].decode())
        if certified:
            file = folder / "client.pem"
            file.write_bytes(data["tls.crt"] + data["tls.key"])
            self.context.load_cert_chain(file)

    def __call__(self, port: int, path: str, body: object) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPSConnection("localhost", port, context=self.context, timeout=10)
        try:
            connection.request("POST", path, json.dumps(body))
            answer = connection.getresponse()
            return answer.status, dict(answer.headers), answer.read()
        finally:
            connection.close()


def test_a_life(installed: LocalCluster, process: Callable[[str], Process], tmp_path: Path) -> None:
    first = process("first")
    until("it is ready", first.ready, timeout=20)
    until("it leads", lambda: holder(installed) == "first", timeout=20)
    assert first.probe("livez") == first.probe("healthz") == 200
    certified, bare = (Caller(installed, tmp_path, certified=choice) for choice in (True, False))

    assert bare(first.webhook, "/extender/filter", FILTER)[0] == 403
    assert bare(first.webhook, "/admit/pods", {"request": {"uid": "1", "operation": "CREATE", "object": {}}})[0] == 200
    assert bare(first.webhook, "/admit/pods", {})[0] == 400
    answered = until("the extender answers", lambda: _filtered(certified, first), timeout=20)
    assert answered["NodeNames"] == []

    second = process("second")
    until("the second is ready", second.ready, timeout=20)
    status, headers, _ = certified(second.webhook, "/extender/filter", FILTER)
    assert (status, headers["Connection"]) == (503, "close")

    assert first.end() == 0
    until("the second leads", lambda: holder(installed) == "second", timeout=10)
    until("its extender answers", lambda: _filtered(certified, second), timeout=20)

    second.end(signal.SIGKILL)
    assert holder(installed) == "second"
    again = second.start()
    until("the extender answers again, no lease waited for", lambda: _filtered(certified, again), timeout=20)
    assert again.end() == 0
    assert holder(installed) == ""
    assert {"time", "level", "logger", "message"} <= set(first.lines()[0])


def _filtered(caller: Caller, process: Process) -> dict[str, Any] | None:
    try:
        status, _, body = caller(process.webhook, "/extender/filter", FILTER)
    except OSError:
        return None
    return json.loads(body) if status == 200 else None


def test_a_leader_that_is_deposed_stops_at_once(
    installed: LocalCluster, process: Callable[[str], Process], tmp_path: Path
) -> None:
    only = process("only")
    until("it leads", lambda: only.ready() and holder(installed) == "only", timeout=20)
    certified = Caller(installed, tmp_path, certified=True)
    until("its extender answers", lambda: _filtered(certified, only), timeout=20)
    usurped = {"spec": {"holderIdentity": "usurper", "leaseDurationSeconds": 3600}}
    installed.kubectl("-n", SYSTEM, "patch", "lease", "egpu-operator", "--type=merge", "-p", json.dumps(usurped))
    until("it refuses", lambda: certified(only.webhook, "/extender/filter", FILTER)[0] == 503, timeout=10)
    assert only.ready(), "admission is served by every replica"
    installed.kubectl("-n", SYSTEM, "delete", "lease", "egpu-operator")
    until("it leads again", lambda: _filtered(certified, only), timeout=20)


def test_a_leader_cut_off_from_the_api_server_stops(
    installed: LocalCluster, process: Callable[[str], Process], tmp_path: Path
) -> None:
    only = process("only")
    certified = until("it is ready", lambda: only.ready() and Caller(installed, tmp_path, certified=True), timeout=20)
    until("its extender answers", lambda: _filtered(certified, only), timeout=20)
    installed.stop("kube-apiserver")
    try:
        until("it refuses", lambda: certified(only.webhook, "/extender/filter", FILTER)[0] == 503, timeout=10)
        assert only.probe("livez") == 200
    finally:
        installed.start("kube-apiserver")
    until("it leads again", lambda: _filtered(certified, only), timeout=60)


def served(port: int) -> bytes:
    return ssl.get_server_certificate(("127.0.0.1", port)).encode()


def scheduler_mark(cluster: LocalCluster) -> str | None:
    found = json.loads(cluster.kubectl("-n", SYSTEM, "get", "deployment", "egpu-scheduler", "-o", "json"))
    mark: str | None = found["spec"]["template"]["metadata"].get("annotations", {}).get(certs.MARK)
    return mark


def test_certificates_are_replaced_without_a_restart(installed: LocalCluster, tmp_path: Path) -> None:
    with Shell(installed) as shell:
        installed.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(configurations(shell.ports["webhook"])))
        shell.trusted()
        before, port = served(shell.ports["webhook"]), shell.ports["webhook"]
        assert scheduler_mark(installed) is None, "the first certificate restarts nothing"
        installed.kubectl("-n", SYSTEM, "delete", "secret", "egpu-operator-tls")
        shell.call(shell.keeper.look())
        shell.trusted()
        assert served(port) != before
        assert Caller(installed, tmp_path, certified=True)(port, "/extender/filter", FILTER)[0] == 503, "not 403"
        assert scheduler_mark(installed), "kube-scheduler reads its certificate once"
        for kind in ("mutating", "validating"):
            found = json.loads(installed.kubectl("get", f"{kind}webhookconfiguration", "egpu-operator", "-o", "json"))
            bundles = {b64decode(hook["clientConfig"]["caBundle"]) for hook in found["webhooks"]}
            assert bundles == {secret(installed, "egpu-operator-tls")["bundle.crt"]}


def test_many_replicas_make_one_set_of_certificates(installed: LocalCluster) -> None:
    installed.kubectl(
        "-n", SYSTEM, "delete", "secret", "egpu-operator-tls", "egpu-scheduler-client", "--ignore-not-found"
    )
    with Shell(installed) as one, Shell(installed) as two:
        for shell in (one, two):
            shell.trusted()
        until("both serve the same", lambda: len({served(s.ports["webhook"]) for s in (one, two)}) == 1, timeout=20)
