"""The slices of this node as the agent knows them: the watch, and for a moment what it asked for itself."""

import asyncio
from collections.abc import Callable, Iterable

from egpu import resources
from egpu.informer import Informer
from egpu.kube import Kube
from egpu.types import Slice

ASKED_LIFE = 60.0
"""Seconds an answer is believed about a slice that the watch does not bring: by then it is gone."""


class NodeSlices:
    """Slices by name. ``on_change`` is called with the name of each that changed."""

    def __init__(self, kube: Kube, *, node: str, on_change: Callable[[str], None]) -> None:
        self._kube = kube
        self._fields = f"spec.nodeName={node}"
        self._on_change = on_change
        self._asked: dict[str, tuple[float, Slice]] = {}
        self.changed = asyncio.Event()
        self.informer: Informer[Slice] = Informer(
            kube, resources.SLICES, parse=Slice.parse, on_change=self._noticed, fields=self._fields
        )

    @property
    def is_synced(self) -> bool:
        """Whether the API server ever answered."""
        return self.informer.is_synced

    def get(self, name: str) -> Slice | None:
        """A slice by name."""
        held = self.informer.get(name)
        if held is not None:
            return held
        since, asked = self._asked.get(name, (0.0, None))
        return asked if asked is not None and _now() - since < ASKED_LIFE else None

    def values(self) -> Iterable[Slice]:
        """All slices."""
        extra = [found for name in list(self._asked) if not self.informer.get(name) and (found := self.get(name))]
        return [*self.informer.values(), *extra]

    async def ask(self) -> None:
        """A quorum list, for a slice that the watch has not brought yet."""
        items, _ = await self._kube.list(resources.SLICES, fields=self._fields)
        for raw in items:
            found = Slice.parse(raw)
            if self.informer.get(found.metadata.name) is None:
                self._asked[found.metadata.name] = (_now(), found)

    def _noticed(self, key: str, _before: Slice | None, _after: Slice | None) -> None:
        self._asked.pop(key, None)
        self.changed.set()
        self._on_change(key)


def _now() -> float:
    return asyncio.get_running_loop().time()
