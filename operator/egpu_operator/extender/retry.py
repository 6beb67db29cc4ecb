"""Pods nothing fitted are tried again the moment something may fit.

Our objects raise no scheduler event, and kube-scheduler's own flush of unschedulable pods takes five minutes; a change
of the pod's annotation makes it look again (docs/experiments.md).
"""

import asyncio
import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from egpu import errors, names
from egpu.resources import PODS
from egpu.types import Pod
from egpu_operator.extender.resolve import fits_somewhere, uses, wish
from egpu_operator.world import World

logger = logging.getLogger(__name__)

COALESCE: Final = 0.05
"""Seconds in which changes are collected before waiting pods are looked at."""


class Retrier:
    """Remembers the pods filter refused on every node, and wakes those that would fit now."""

    def __init__(self, *, world: World, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._world = world
        self._clock = clock
        self._refused: dict[str, str] = {}
        self._changed = asyncio.Event()

    def note(self, pod: Pod, *, fits: bool) -> None:
        """What filter has just found about a pod."""
        if fits:
            self._refused.pop(pod.metadata.uid, None)
        else:
            self._refused[pod.metadata.uid] = pod.metadata.key

    def changed(self) -> None:
        """Something may fit now that did not before."""
        if self._refused:
            self._changed.set()

    async def run(self) -> None:
        """Wakes pods until cancelled; begins with all that wait, since another leader may have refused them."""
        for pod in self._world.pods.values():
            if _waits(pod):
                self._refused[pod.metadata.uid] = pod.metadata.key
        self._changed.set()
        while True:
            await self._changed.wait()
            await asyncio.sleep(COALESCE)
            self._changed.clear()
            await self._wake_all()

    async def _wake_all(self) -> None:
        views = {view.name: view for view in self._world.views()}
        begun = time.monotonic()
        for uid, key in list(self._refused.items()):
            pod = self._world.pods.get(key)
            if pod is None or pod.metadata.uid != uid or not _waits(pod):
                self._refused.pop(uid, None)
            elif fits_somewhere(wish(pod, uses(pod, world=self._world)), views):
                self._refused.pop(uid, None)
                await self._wake(pod)
        logger.debug("looked at waiting pods in %.1f ms", (time.monotonic() - begun) * 1000)

    async def _wake(self, pod: Pod) -> None:
        stamp = self._clock().strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        body = {"metadata": {"uid": pod.metadata.uid, "annotations": {names.ANNOTATION_RETRY: stamp}}}
        try:
            await self._world.kube.patch_merge(PODS, pod.metadata.name, body, namespace=pod.metadata.namespace)
        except errors.KubeError as error:
            logger.info("pod %s not woken: %s", pod.metadata.key, error)


def _waits(pod: Pod) -> bool:
    return (
        pod.spec.scheduler_name == names.SCHEDULER
        and not pod.spec.node_name
        and not pod.metadata.deleting
        and not pod.ended
    )
