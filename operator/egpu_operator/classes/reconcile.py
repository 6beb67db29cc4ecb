"""Classes: protected while used."""

from egpu import errors
from egpu.events import Recorder, Subject
from egpu.resources import CLASSES
from egpu.types import GPUClass
from egpu_operator.classes.decide import decide
from egpu_operator.world import World


class ClassReconciler:
    """Keeps the finalizer of classes."""

    def __init__(self, *, world: World, recorder: Recorder) -> None:
        self._world = world
        self._recorder = recorder

    async def __call__(self, name: str) -> float | None:
        """Reconciles one class."""
        held = self._world.classes.get(name)
        if held is None:
            return None
        decision = decide(held, claims=self._world.claims_of_class(name))
        if decision.finalizers is not None:
            await self._write(held, decision.finalizers)
        if decision.event is not None:
            self._recorder.say(Subject.of(CLASSES, held.metadata), decision.event)
        return None

    async def _write(self, held: GPUClass, finalizers: tuple[str, ...]) -> None:
        meta = {
            "resourceVersion": held.metadata.resource_version,
            "uid": held.metadata.uid,
            "finalizers": list(finalizers),
        }
        name = held.metadata.name
        try:
            self._world.classes.put(await self._world.kube.patch_merge(CLASSES, name, {"metadata": meta}))
        except errors.NotFound:
            self._world.classes.forget(name)
        except errors.Conflict:
            await self._refetch(name)
            raise

    async def _refetch(self, name: str) -> None:
        raw = await self._world.kube.find(CLASSES, name)
        if raw is not None:
            self._world.classes.put(raw)
