"""Who may use a slice: set, asked back and cleared by compare-and-swap on the ElasticGPU's ``resourceVersion``."""

from collections.abc import Callable
from typing import Any, Final

from egpu import errors
from egpu.kube import Kube
from egpu.resources import SLICES
from egpu.types import Consumer, Slice, wire
from egpu_operator.world import World

ATTEMPTS: Final = 6
PATH: Final = "/spec/consumer"


class InUseError(Exception):
    """Another pod has the slice; ``consumer`` says which."""

    def __init__(self, consumer: Consumer) -> None:
        super().__init__(f"in use by pod {consumer.pod_namespace}/{consumer.pod_name}")
        self.consumer = consumer


class Consumers:
    """Writes ``spec.consumer`` of slices."""

    def __init__(self, *, kube: Kube, world: World) -> None:
        self._kube = kube
        self._world = world

    async def take(self, held: Slice, consumer: Consumer) -> Slice:
        """Gives a slice to a pod; a pod that has it already keeps it.

        Raises:
            InUseError: another pod has it, or its own last use is being cleaned up.
        """

        def change(now: Slice) -> dict[str, Any] | None:
            user = now.spec.consumer
            if user is None:
                return {"op": "add", "path": PATH, "value": wire(consumer)}
            if user.pod_uid != consumer.pod_uid or user.releasing:
                raise InUseError(user)
            return None

        return await self._write(held, change)

    async def ask_back(self, held: Slice, *, pod_uid: str) -> Slice:
        """Says that the pod has ended: the agent is to confirm that nothing of it is left."""

        def change(now: Slice) -> dict[str, Any] | None:
            user = now.spec.consumer
            if user is None or user.pod_uid != pod_uid or user.releasing:
                return None
            return {"op": "add", "path": f"{PATH}/releasing", "value": True}

        return await self._write(held, change)

    async def clear(self, held: Slice, *, pod_uid: str) -> Slice:
        """Takes the slice from a pod of which nothing is left."""

        def change(now: Slice) -> dict[str, Any] | None:
            user = now.spec.consumer
            return {"op": "remove", "path": PATH} if user is not None and user.pod_uid == pod_uid else None

        return await self._write(held, change)

    async def _write(self, held: Slice, change: Callable[[Slice], dict[str, Any] | None]) -> Slice:
        name = held.metadata.name
        for _ in range(ATTEMPTS):
            operation = change(held)
            if operation is None:
                return held
            version = {"op": "test", "path": "/metadata/resourceVersion", "value": held.metadata.resource_version}
            try:
                return self._world.slices.put(await self._kube.patch_json(SLICES, name, [version, operation]))
            except errors.Conflict:
                held = self._world.slices.put(await self._kube.get(SLICES, name))
        raise errors.Retry(f"ElasticGPU {name} keeps changing; trying again")
