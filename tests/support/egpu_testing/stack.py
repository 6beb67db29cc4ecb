"""The product on a cluster: installed by its own manifests, looked at through kubectl."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import yaml

from egpu_testing.waiting import until
from localcluster.errors import ClusterError

ROOT = Path(__file__).resolve().parents[3]
SYSTEM = "elasticgpu-system"

Object = dict[str, Any]


class Cluster(Protocol):
    """A cluster of localcluster's, own or somebody else's."""

    has_node_access: bool

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """Runs kubectl and returns what it prints."""


class Stack:
    """Elastic GPU installed on a cluster."""

    def __init__(self, cluster: Cluster, *, tell: Callable[[str], None] = lambda _: None) -> None:
        self.cluster = cluster
        self._tell = tell

    def install(self, *, timeout: float = 180.0) -> None:
        """Applies crds/ and manifests/ as the README says and waits until every part is ready."""
        self.cluster.kubectl("apply", "-f", str(ROOT / "crds"))
        self.cluster.kubectl("wait", "--for=condition=Established", "crd", "-l!none", "--all", "--timeout=30s")
        self.cluster.kubectl("apply", "-f", str(ROOT / "manifests"))
        self._tell("manifests applied")
        for what in (f"deployment/{name}" for name in ("egpu-operator", "egpu-scheduler")):
            self.rollout(what, timeout=timeout)
            self._tell(f"{what} is ready")
        self.rollout("daemonset/egpu-agent", timeout=timeout)
        until("every node shows its cards", self._cards_shown, timeout=timeout)
        self._tell("daemonset/egpu-agent is ready, the cards are known")

    def rollout(self, what: str, *, timeout: float = 120.0) -> None:
        """Waits until a workload of the product is ready."""
        self.cluster.kubectl("-n", SYSTEM, "rollout", "status", what, f"--timeout={timeout:.0f}s")

    def _cards_shown(self) -> bool:
        nodes = self.list("nodes")
        shown = self.list("egpun")
        ready = [n for n in shown if condition(n, "Ready") == "True" and n["status"].get("cards")]
        tickets = [n for n in nodes if n["status"].get("allocatable", {}).get("elasticgpu.io/slice", "0") != "0"]
        return bool(nodes) and len(ready) == len(nodes) == len(tickets)

    def apply(self, *documents: Object | str | Path) -> None:
        """Applies objects, YAML texts or files."""
        for document in documents:
            if isinstance(document, Path):
                self.cluster.kubectl("apply", "-f", str(document))
            else:
                text = document if isinstance(document, str) else yaml.safe_dump(document)
                self.cluster.kubectl("apply", "-f", "-", stdin=text)

    def create(self, objects: Sequence[Object]) -> None:
        """Creates many objects in one call."""
        self.cluster.kubectl("create", "-f", "-", stdin=yaml.safe_dump_all(objects))

    def get(self, kind: str, name: str, *, namespace: str = "default") -> Object:
        """One object; LookupError where there is none."""
        try:
            answer: Object = json.loads(self.cluster.kubectl("-n", namespace, "get", kind, name, "-o", "json"))
        except ClusterError as error:
            if "NotFound" in str(error) or "not found" in str(error):
                raise LookupError(f"no {kind} {name}") from error
            raise
        return answer

    def list(self, kind: str, *, namespace: str = "default") -> list[Object]:
        """All objects of a kind."""
        items: list[Object] = json.loads(self.cluster.kubectl("-n", namespace, "get", kind, "-o", "json"))["items"]
        return items

    def delete(
        self, kind: str, name: str, *, namespace: str = "default", force: bool = False, wait: bool = True
    ) -> None:
        """Deletes an object; ``force`` as kubectl's ``--force --grace-period=0``."""
        options = ["--force", "--grace-period=0"] if force else []
        options += ["--ignore-not-found", f"--wait={str(wait).lower()}"]
        self.cluster.kubectl("-n", namespace, "delete", kind, name, *options)

    def logs(self, pod: str, *, container: str | None = None, namespace: str = "default") -> str:
        """What a container has printed; LookupError where it has not started."""
        chosen = ["-c", container] if container else []
        try:
            return self.cluster.kubectl("-n", namespace, "logs", pod, *chosen)
        except ClusterError as error:
            if "waiting to start" in str(error) or "does not have a host assigned" in str(error):
                raise LookupError(str(error)) from error
            raise

    def exec(self, pod: str, *argv: str, container: str | None = None) -> str:
        """Runs a command in a container and returns what it prints."""
        chosen = ["-c", container] if container else []
        return self.cluster.kubectl("exec", pod, *chosen, "--", *argv)

    def events(self, name: str, *, namespace: str = "default") -> str:
        """The events about an object, one a line: reason and note."""
        query = f"--field-selector=involvedObject.name={name}"
        items = json.loads(self.cluster.kubectl("-n", namespace, "get", "events", query, "-o", "json"))["items"]
        return "\n".join(f"{item['reason']}: {item['message']}" for item in items)

    def running(self, *pods: str, timeout: float = 60.0, namespace: str = "default") -> None:
        """Waits until the pods' containers run."""

        def all_run() -> bool:
            phases = {
                pod["metadata"]["name"]: pod["status"].get("phase") for pod in self.list("pods", namespace=namespace)
            }
            late = {pod: phases.get(pod) for pod in pods if phases.get(pod) != "Running"}
            if late:
                raise LookupError(f"not running: {late}")
            return True

        until(f"{len(pods)} pods run", all_run, timeout=timeout, every=0.25)

    def gone(self, kind: str, name: str, *, timeout: float = 60.0) -> None:
        """Waits until an object is no more."""

        def absent() -> bool:
            try:
                self.get(kind, name)
            except LookupError:
                return True
            return False

        until(f"{kind} {name} is gone", absent, timeout=timeout)


def condition(obj: Object, kind: str) -> str:
    """The status of a condition, empty where it is absent."""
    found = [c["status"] for c in obj.get("status", {}).get("conditions", ()) if c["type"] == kind]
    return str(found[0]) if found else ""
