"""kube-scheduler's extender protocol, version 1, for a node-cache-capable extender (names of nodes, not nodes).

The fields are those of k8s.io/kube-scheduler/extender/v1, which Go writes without JSON tags, hence with capitals.
"""

import logging
from typing import Any, Final

from egpu import errors, placement
from egpu.types import ParseError, Pod, Spread
from egpu_operator.extender.bind import Binder, BindError
from egpu_operator.extender.resolve import Wish, misfit, uses, wish
from egpu_operator.extender.retry import Retrier
from egpu_operator.world import World

logger = logging.getLogger(__name__)

Json = dict[str, Any]
NO_PREFERENCE: Final = 0


class Extender:
    """Answers kube-scheduler. Filter and prioritize only read the caches."""

    def __init__(self, *, world: World, binder: Binder, retrier: Retrier) -> None:
        self._world = world
        self._binder = binder
        self._retrier = retrier

    async def filter(self, args: Json) -> Json:
        """Which of the nodes fit the pod, and why the others do not.

        Nothing here can be resolved by evicting pods the scheduler knows of, hence ``FailedAndUnresolvableNodes``.
        """
        try:
            pod = Pod.parse(args["Pod"])
        except ParseError as error:
            return _filtered([], {}, error=str(error))
        wanted = wish(pod, uses(pod, world=self._world))
        nodes: list[str] = args.get("NodeNames") or []
        failed = self._failed(nodes, wanted)
        self._retrier.note(pod, fits=len(failed) < len(nodes))
        return _filtered([name for name in nodes if name not in failed], failed)

    async def prioritize(self, args: Json) -> list[Json]:
        """Scores 0..10 by the node policy of the pod's classes."""
        pod = Pod.parse(args["Pod"])
        nodes: list[str] = args.get("NodeNames") or []
        wanted = wish(pod, uses(pod, world=self._world))
        scores = self._scores(nodes, wanted)
        return [{"Host": name, "Score": scores.get(name, NO_PREFERENCE)} for name in nodes]

    async def bind(self, args: Json) -> Json:
        """Binds the pod's claims, and the pod to the node."""
        try:
            await self._binder.bind(
                namespace=args["PodNamespace"], name=args["PodName"], uid=args["PodUID"], node=args["Node"]
            )
        except (BindError, errors.KubeError) as error:
            logger.info("pod %s/%s not bound: %s", args["PodNamespace"], args["PodName"], error)
            return {"Error": str(error)}
        return {"Error": ""}

    def _failed(self, nodes: list[str], wanted: Wish) -> dict[str, str]:
        if wanted.problem:
            return dict.fromkeys(nodes, wanted.problem)
        found = {name: misfit(name, view=self._world.view(name), wanted=wanted) for name in nodes}
        return {name: lack.reason for name, lack in found.items() if lack is not None}

    def _scores(self, nodes: list[str], wanted: Wish) -> dict[str, int]:
        if not wanted.orders:
            return {}
        policy = next((u.gpu_class.placement.node for u, _ in wanted.orders if u.gpu_class), Spread.BINPACK)
        usages = {
            name: placement.usage_after(view, placed)
            for name in nodes
            if (view := self._world.view(name)) is not None
            and (placed := placement.place(view, wanted.asks)) is not None
        }
        return placement.scores(usages, policy)


def _filtered(nodes: list[str], failed: dict[str, str], *, error: str = "") -> Json:
    return {"NodeNames": nodes, "FailedNodes": {}, "FailedAndUnresolvableNodes": failed, "Error": error}
