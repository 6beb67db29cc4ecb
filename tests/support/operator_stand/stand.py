"""The operator, nodes with cards, and an agent's part, on a real API server."""

import asyncio
import contextlib
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from egpu import errors, names
from egpu.kube import Kube, Object
from egpu.resources import CLAIMS, CLASSES, NODE_CARDS, NODES, PODS, SLICES, Resource
from egpu_operator.app import Operator
from egpu_operator.provision import Steps, no_steps
from operator_stand.objects import card

T = TypeVar("T")
PATIENCE = 20.0
NAMESPACES = Resource(group="", version="v1", plural="namespaces", kind="Namespace", namespaced=False)
ACCOUNTS = Resource(group="", version="v1", plural="serviceaccounts", kind="ServiceAccount", namespaced=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Station:
    """Who the operator says it is."""

    identity: str = "test"


class Stand:
    """One test's corner of a cluster: nodes named after it, a namespace of its own."""

    def __init__(self, kube: Kube, *, name: str) -> None:
        self.kube = kube
        self.name = name
        self.namespace = name
        self._made: list[tuple[Resource, str]] = []

    async def node(self, suffix: str, *cards: dict[str, Any], ready: bool = True, **labels: str) -> str:
        """A Node and its ElasticGPUNode, as kubelet and agent would make them."""
        name = f"{self.name}-{suffix}"
        await self.kube.create(NODES, {"metadata": {"name": name, "labels": labels}})
        await self.kube.patch_merge(
            NODES, name, {"status": {"allocatable": {"pods": "110", names.TICKET: "1024"}}}, subresource="status"
        )
        await self.kube.patch_merge(NODES, name, {"spec": {"taints": None}})
        await self.kube.create(
            NODE_CARDS, {"apiVersion": names.API_VERSION, "kind": "ElasticGPUNode", "metadata": {"name": name}}
        )
        await self.report(name, *(cards or (card(f"GPU-{name}-0"),)), ready=ready)
        self._made += [(NODES, name), (NODE_CARDS, name)]
        return name

    async def report(self, name: str, *cards: dict[str, Any], ready: bool = True) -> None:
        """What the node's agent says."""
        condition = {
            "type": "Ready",
            "status": str(ready),
            "reason": "Test",
            "message": "",
            "lastTransitionTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
        status = {"cards": list(cards), "cardCount": len(cards), "conditions": [condition]}
        await self.kube.patch_merge(NODE_CARDS, name, {"status": status}, subresource="status")

    async def create(self, body: Object) -> Object:
        """Creates an object of ours or a pod, in the test's namespace where it has one."""
        resource = {
            "EGPUClass": CLASSES,
            "ElasticGPUClaim": CLAIMS,
            "ElasticGPU": SLICES,
            "Pod": PODS,
        }[body["kind"]]
        return await self.kube.create(resource, body, namespace=self.namespace)

    async def claim(self, name: str) -> Object | None:
        return await self.kube.find(CLAIMS, name, namespace=self.namespace)

    async def slices(self) -> list[Object]:
        """The slices on this test's nodes."""
        found, _ = await self.kube.list(SLICES)
        return [raw for raw in found if raw["spec"]["nodeName"].startswith(f"{self.name}-")]

    async def bookings(self, node: str) -> dict[str, dict[str, Any]]:
        """Bookings of a node by card."""
        raw = await self.kube.get(NODE_CARDS, node)
        held = raw.get("spec", {}).get("bookings", {})
        return {uuid: entry["slices"] for uuid, entry in held.items() if entry["slices"]}

    async def phase(self, name: str, phase: str) -> Object:
        """Waits until a claim has a phase."""

        async def probe() -> Object | None:
            raw = await self.claim(name)
            return raw if raw and raw.get("status", {}).get("phase") == phase else None

        return await until(f"claim {name} {phase}", probe)

    async def reason(self, name: str, reason: str, *, kind: str = "Bound") -> str:
        """Waits until a claim's condition has a reason; its message."""

        async def probe() -> str | None:
            raw = await self.claim(name) or {}
            found = [c for c in raw.get("status", {}).get("conditions", ()) if c["type"] == kind]
            return found[0]["message"] if found and found[0]["reason"] == reason else None

        return await until(f"claim {name}: {kind} {reason}", probe)

    async def agent(self) -> None:
        """Plays every node's agent until cancelled: confirms releases, lets go of slices being deleted."""
        while True:
            for raw in await self.slices():
                with contextlib.suppress(errors.KubeError):
                    await self._agent_answers(raw)
            await asyncio.sleep(0.05)

    async def _agent_answers(self, raw: Object) -> None:
        name, user = raw["metadata"]["name"], raw["spec"].get("consumer")
        if user and user.get("releasing") and raw.get("status", {}).get("releasedPodUID") != user["podUID"]:
            await self.kube.patch_merge(
                SLICES, name, {"status": {"releasedPodUID": user["podUID"]}}, subresource="status"
            )
        if raw["metadata"].get("deletionTimestamp") and user is None:
            held = raw["metadata"].get("finalizers", [])
            if names.FINALIZER_AGENT in held:
                left = [f for f in held if f != names.FINALIZER_AGENT]
                meta = {"finalizers": left, "resourceVersion": raw["metadata"]["resourceVersion"]}
                await self.kube.patch_merge(SLICES, name, {"metadata": meta})

    @contextlib.asynccontextmanager
    async def operator(self, *, steps: Steps = no_steps) -> AsyncIterator[Operator]:
        """An operator at work."""
        operator = Operator(self.kube, Station(), steps=steps)
        await operator.start()
        work = asyncio.create_task(operator.run())
        try:
            yield operator
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
            await operator.stop()

    async def give_back(self, name: str) -> None:
        """Deletes a claim, and plays the agent until its slice is gone."""
        raw = await self.kube.get(CLAIMS, name, namespace=self.namespace)
        await self.kube.delete(CLAIMS, name, namespace=self.namespace)

        async def gone() -> bool:
            held = [s for s in await self.slices() if s["spec"]["claimRef"]["uid"] == raw["metadata"]["uid"]]
            for own in held:
                with contextlib.suppress(errors.KubeError):
                    await self._agent_answers(own)
            return not held

        await until(f"slice of {name} gone", gone)

    async def enter(self) -> None:
        """Makes the namespace, and waits for the service account without which no pod is admitted."""
        await self.kube.create(NAMESPACES, {"metadata": {"name": self.namespace}})
        await until("service account", lambda: self.kube.find(ACCOUNTS, "default", namespace=self.namespace))

    async def clean(self) -> None:
        """Removes what other tests would see, finalizers or not."""
        for resource, namespace in ((PODS, self.namespace), (CLAIMS, self.namespace), (SLICES, None), (CLASSES, None)):
            found, _ = await self.kube.list(resource, namespace=namespace)
            for raw in found:
                if resource.namespaced or self._is_mine(raw):
                    await self._wipe(resource, raw["metadata"]["name"], namespace)
        for resource, name in self._made:
            await self.kube.delete(resource, name)

    def _is_mine(self, raw: Object) -> bool:
        node = raw.get("spec", {}).get("nodeName", "")
        return bool(raw["metadata"]["name"].startswith(self.name) or node.startswith(f"{self.name}-"))

    async def _wipe(self, resource: Resource, name: str, namespace: str | None) -> None:
        await self.kube.delete(resource, name, namespace=namespace)
        with contextlib.suppress(errors.NotFound):
            await self.kube.patch_merge(resource, name, {"metadata": {"finalizers": None}}, namespace=namespace)


@contextlib.asynccontextmanager
async def stand_on(kubeconfig: Path, test: str) -> AsyncIterator[Stand]:
    """A stand for one test, named after it, on a cluster."""
    name = f"t{zlib.crc32(test.encode()):08x}"
    async with await Kube.connect(kubeconfig=str(kubeconfig)) as kube:
        stand = Stand(kube, name=name)
        await stand.enter()
        try:
            yield stand
        finally:
            await stand.clean()


async def until(what: str, probe: Callable[[], Awaitable[T | None]], *, timeout: float = PATIENCE) -> T:
    """The first answer of ``probe`` that is true."""
    last: object = None
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout
    while loop.time() < deadline:
        last = await probe()
        if last:
            return last
        await asyncio.sleep(0.02)
    raise AssertionError(f"not so within {timeout:g} s: {what} (last seen: {last!r})")
