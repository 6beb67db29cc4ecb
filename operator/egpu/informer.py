"""A list and watch of one kind, filtered by the server, held as parsed values.

The list is a quorum read (never ``resourceVersion=0``), so that after a restart nothing older than the last write is
believed. Objects are parsed on arrival and the raw mapping dropped: what stays in memory is what :mod:`egpu.types`
keeps.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable
from typing import Generic, Protocol, TypeVar

from egpu import errors
from egpu.kube import Kube, Object
from egpu.resources import Resource
from egpu.types import Meta, ParseError

logger = logging.getLogger(__name__)

RETRY_FIRST = 0.2
RETRY_MOST = 10.0


class Parsed(Protocol):
    """What an informer can hold."""

    @property
    def metadata(self) -> Meta:
        """The object's metadata."""


T = TypeVar("T", bound=Parsed)


class Informer(Generic[T]):
    """The current objects of one kind.

    ``on_change`` is called for each object that appeared, changed or went, with its key, the value before and the
    value after (None where there was or is none). It must not block; it usually adds a key to a work queue.
    """

    def __init__(
        self,
        kube: Kube,
        resource: Resource,
        *,
        parse: Callable[[Object], T],
        on_change: Callable[[str, T | None, T | None], None],
        namespace: str | None = None,
        labels: str | None = None,
        fields: str | None = None,
    ) -> None:
        self._kube = kube
        self._resource = resource
        self._parse = parse
        self._on_change = on_change
        self._namespace = namespace
        self._labels = labels
        self._fields = fields
        self._items: dict[str, T] = {}
        self._synced = asyncio.Event()
        self._last_event = 0.0

    def get(self, key: str) -> T | None:
        """The object of a key (``namespace/name``, or ``name``), or None."""
        return self._items.get(key)

    def values(self) -> Iterable[T]:
        """All objects; do not await while iterating."""
        return self._items.values()

    def __len__(self) -> int:
        """Number of objects."""
        return len(self._items)

    @property
    def is_synced(self) -> bool:
        """Whether the first list is in."""
        return self._synced.is_set()

    async def synced(self) -> None:
        """Returns once the first list is in."""
        await self._synced.wait()

    def last_event_age(self) -> float:
        """Seconds since the server last said anything about this kind, bookmarks included."""
        return asyncio.get_running_loop().time() - self._last_event

    def put(self, raw: Object) -> T:
        """Takes in the answer to an own write at once, unless the watch has already brought something newer.

        An answer without its last finalizer is of an object that no longer exists.
        """
        value = self._parse(raw)
        if value.metadata.deleting and not value.metadata.finalizers:
            self._drop(value.metadata.key, version=_version(value))
        else:
            self._set(value)
        return value

    def remove(self, raw: Object) -> None:
        """Takes in that an object is gone, unless one of its name has been created since."""
        value = self._parsed(raw)
        if value is not None:
            self._drop(value.metadata.key, version=_version(value))

    def is_behind(self, raw: Object) -> bool:
        """Whether an object as the API server sends it is unknown here, or newer than what is held."""
        meta = raw["metadata"]
        namespace = meta.get("namespace")
        held = self._items.get(f"{namespace}/{meta['name']}" if namespace else meta["name"])
        return held is None or _version(held) < int(meta["resourceVersion"])

    def forget(self, key: str) -> None:
        """Drops an object the API server has just said it does not have."""
        held = self._items.get(key)
        if held is not None:
            self._drop(key, version=_version(held))

    async def refresh(self) -> None:
        """One quorum list; for caches that something else keeps current."""
        await self._relist()

    async def run(self) -> None:
        """Keeps the objects current until cancelled; whatever the API server does."""
        delay = RETRY_FIRST
        while True:
            try:
                version = await self._relist()
                delay = RETRY_FIRST
                await self._follow(version)
            except errors.Gone:
                continue
            except (errors.KubeError, OSError, ValueError) as error:
                logger.warning("list and watch of %s: %s; again in %.1f s", self._resource.plural, error, delay)
                await asyncio.sleep(delay)
                delay = min(delay * 2, RETRY_MOST)

    async def _relist(self) -> str:
        raw, version = await self._kube.list(
            self._resource, namespace=self._namespace, labels=self._labels, fields=self._fields
        )
        self._heard()
        fresh = {value.metadata.key: value for value in map(self._parsed, raw) if value is not None}
        for key in [key for key in self._items if key not in fresh]:
            self._drop(key, version=int(version))
        for value in fresh.values():
            self._set(value)
        self._synced.set()
        return version

    async def _follow(self, version: str) -> None:
        while True:
            watch = self._kube.watch(
                self._resource, version=version, namespace=self._namespace, labels=self._labels, fields=self._fields
            )
            async with contextlib.aclosing(watch) as events:
                async for event in events:
                    self._heard()
                    version = event["object"]["metadata"]["resourceVersion"]
                    self._take(event["type"], event["object"])

    def _take(self, kind: str, raw: Object) -> None:
        if kind == "BOOKMARK":
            return
        value = self._parsed(raw)
        if value is None:
            return
        if kind == "DELETED":
            self._drop(value.metadata.key, version=_version(value))
        else:
            self._set(value)

    def _parsed(self, raw: Object) -> T | None:
        raw.setdefault("kind", self._resource.kind)
        try:
            return self._parse(raw)
        except ParseError as error:
            logger.error("passed over: %s", error)  # noqa: TRY400 - one bad object is said once, without a trace
            return None

    def _set(self, value: T) -> None:
        key = value.metadata.key
        before = self._items.get(key)
        if before is not None and _version(before) >= _version(value):
            return
        self._items[key] = value
        self._on_change(key, before, value)

    def _drop(self, key: str, *, version: int) -> None:
        before = self._items.get(key)
        if before is not None and _version(before) <= version:
            del self._items[key]
            self._on_change(key, before, None)

    def _heard(self) -> None:
        self._last_event = asyncio.get_running_loop().time()


def _version(value: Parsed) -> int:
    """Resource versions of one kind can be compared as integers from Kubernetes 1.35 on (KEP-5504)."""
    return int(value.metadata.resource_version or 0)
