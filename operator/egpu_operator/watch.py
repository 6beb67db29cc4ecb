"""kopf, in a thread and an event loop of its own: it watches claims and classes, and hands every event over.

Handlers of ``kopf.on.event`` are never retried and their errors are swallowed, so they do nothing that could fail. kopf
writes nothing here: no finalizer, no annotation, no event, no peering object (docs/experiments.md). It has a thread to
itself because at its end it cancels every task of its loop that it does not know.
"""

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Any, Final

import kopf
from kopf._core.engines.peering import Identity

from egpu import errors, names
from egpu.informer import Informer
from egpu.kube import Kube, Object
from egpu.resources import CLAIMS, CLASSES, Resource

logger = logging.getLogger(__name__)

KOPF_PREFIX: Final = f"kopf.{names.GROUP}"
START_LIMIT: Final = 30.0
STOP_LIMIT: Final = 10.0
FIRST_CHECK: Final = 10.0
CHECK: Final = 60.0
GRACE: Final = 5.0
"""Seconds kopf has to deliver what a list has shown."""

CLOSING: Final = 0.25
"""Seconds a loop must go on for aiohttp's TLS connections to close (aiohttp's documentation, "Graceful Shutdown")."""

Taker = Callable[[str, Object], None]


class KopfWatch:
    """kopf's watch of claims and classes, filling two caches of the loop that made it."""

    def __init__(self, *, kube: Kube, claims: Informer[Any], classes: Informer[Any]) -> None:
        self._kube = kube
        self._caches: dict[Resource, Informer[Any]] = {CLAIMS: claims, CLASSES: classes}
        self._loop = asyncio.get_running_loop()
        self._stop = threading.Event()
        self._ready = threading.Event()
        self._ended = asyncio.Event()
        self._fault: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="kopf", daemon=True)

    async def start(self) -> None:
        """Starts the thread and waits until kopf runs."""
        self._thread.start()
        if not await asyncio.to_thread(self._ready.wait, START_LIMIT):
            raise TimeoutError(f"kopf has not started within {START_LIMIT:.0f} s")

    async def run(self) -> None:
        """Sees to it that kopf goes on watching, until cancelled.

        Raises:
            RuntimeError: kopf has ended though nobody stopped it, or watches no more: it can lose its watches for good
                (after six refused requests, for instance) and go on as if nothing were.
        """
        pause = FIRST_CHECK
        while not await self._ended_within(pause):
            pause = CHECK
            try:
                deaf = [resource.plural for resource in self._caches if await self._missed(resource)]
            except errors.KubeError as error:
                logger.warning("kopf's watches not checked: %s", error)
                continue
            if deaf:
                raise RuntimeError(f"kopf no longer watches {', '.join(deaf)}")
        if not self._stop.is_set():
            raise RuntimeError("kopf has stopped by itself") from self._fault

    async def _ended_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                return await self._ended.wait()
        except TimeoutError:
            return False

    async def _missed(self, resource: Resource) -> bool:
        """Whether kopf has not delivered what a list shows; what is missing in the cache is put right.

        Deletions alone prove nothing: kopf's watch does not tell of those that fall between two of its lists.
        """
        cache = self._caches[resource]
        listed, _ = await self._kube.list(resource)
        if not any(cache.is_behind(raw) for raw in listed):
            await self._drop_gone(resource, listed)
            return False
        await self._ended_within(GRACE)
        return any([self._take(resource, None, raw) for raw in listed if cache.is_behind(raw)])  # noqa: C419 - take all

    async def _drop_gone(self, resource: Resource, listed: list[Object]) -> None:
        there = {raw["metadata"]["uid"] for raw in listed}
        doubtful = [held.metadata for held in self._caches[resource].values() if held.metadata.uid not in there]
        for meta in doubtful:
            raw = await self._kube.find(resource, meta.name, namespace=meta.namespace or None)
            if raw is None or raw["metadata"]["uid"] != meta.uid:
                self._caches[resource].forget(meta.key)

    async def stop(self) -> None:
        """Stops kopf."""
        self._stop.set()
        if self._thread.is_alive():
            async with asyncio.timeout(STOP_LIMIT):
                await self._ended.wait()

    def _work(self) -> None:
        try:
            asyncio.run(self._operate())
        except BaseException as error:  # noqa: BLE001 - handed to the loop that waits for it
            self._fault = error
        finally:
            self._ready.set()
            self._loop.call_soon_threadsafe(self._ended.set)

    async def _operate(self) -> None:
        logging.getLogger("kopf.objects").setLevel(logging.WARNING)  # else a line for every event
        registry = kopf.OperatorRegistry()
        kopf.on.login(registry=registry)(self._login)
        for resource in self._caches:
            self._watch(resource, registry=registry)
        await kopf.operator(
            registry=registry,
            settings=quiet_settings(),
            # kopf would ask for the name of the user, which a numeric user of a container does not have.
            identity=Identity(names.OPERATOR),
            standalone=True,
            clusterwide=True,
            stop_flag=self._stop,
            ready_flag=self._ready,
        )
        await asyncio.sleep(CLOSING)

    def _watch(self, resource: Resource, *, registry: kopf.OperatorRegistry) -> None:
        @kopf.on.event(resource.group, resource.version, resource.plural, registry=registry)
        async def hand_over(event: kopf.RawEvent, **_: object) -> None:
            self._loop.call_soon_threadsafe(self._take, resource, event["type"], event["object"])

    def _take(self, resource: Resource, kind: str | None, raw: Any) -> bool:  # noqa: ANN401 - as it came off the wire
        """Puts an event into its cache; False where the object cannot be understood."""
        cache = self._caches[resource]
        try:
            if kind == "DELETED":
                cache.remove(raw)
            else:
                cache.put(raw)
        except ValueError as error:
            logger.error("passed over: %s", error)  # noqa: TRY400 - one bad object is said once, without a trace
            return False
        return True

    async def _login(self, **_: object) -> kopf.ConnectionInfo:
        access = await self._kube.access()
        return kopf.ConnectionInfo(
            server=access.server,
            ca_path=access.ca_file,
            insecure=access.insecure,
            scheme="Bearer" if access.token else None,
            token=access.token,
            certificate_path=access.certificate_file,
            private_key_path=access.key_file,
        )


def quiet_settings() -> kopf.OperatorSettings:
    """Settings under which kopf only watches."""
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.scanning.disabled = True
    settings.persistence.finalizer = f"{KOPF_PREFIX}/finalizer"
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=KOPF_PREFIX)
    settings.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(prefix=KOPF_PREFIX)
    settings.watching.server_timeout = 290
    settings.networking.error_backoffs = (0.2, 1, 2, 5, 10)
    return settings
