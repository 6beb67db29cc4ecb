"""A queue of keys to reconcile: a key waits once however often it is added, and only one worker has it at a time."""

import asyncio
import heapq
import itertools
import logging
import random
from collections.abc import Awaitable, Callable

from egpu import errors

logger = logging.getLogger(__name__)

BACKOFF_FIRST = 0.05
BACKOFF_MOST = 60.0


def backoff(failures: int, *, jitter: float) -> float:
    """Seconds to wait after so many failures in a row; ``jitter`` (0..1) spreads them over the upper half."""
    most: float = min(BACKOFF_FIRST * 2 ** min(failures - 1, 20), BACKOFF_MOST)
    return most * (0.5 + jitter / 2)


class WorkQueue:
    """Calls ``reconcile`` for each key until it succeeds.

    ``reconcile`` returns None when done or the seconds after which it wants the key again. An error brings the key back
    after a growing delay: quietly for a lost race, with a warning for the API server's troubles, with a trace for
    anything else.
    """

    def __init__(self, reconcile: Callable[[str], Awaitable[float | None]], *, name: str, workers: int = 4) -> None:
        self._reconcile = reconcile
        self._name = name
        self._workers = workers
        self._ready: asyncio.Queue[str] = asyncio.Queue()
        self._waiting: set[str] = set()
        self._active: set[str] = set()
        self._again: set[str] = set()
        self._failures: dict[str, int] = {}
        self._later: list[tuple[float, int, str]] = []
        self._due: dict[str, float] = {}
        self._order = itertools.count()
        self._wake = asyncio.Event()

    def __len__(self) -> int:
        """Number of keys waiting or in work."""
        return len(self._waiting) + len(self._active)

    def add(self, key: str, *, after: float = 0.0) -> None:
        """Wants a key reconciled, now or after so many seconds; the earlier of two wishes counts."""
        if after > 0:
            self._postpone(key, after)
        elif key in self._active:
            self._again.add(key)
        elif key not in self._waiting:
            self._waiting.add(key)
            self._ready.put_nowait(key)

    async def run(self) -> None:
        """Works until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._clock(), name=f"{self._name}-clock")
            for number in range(self._workers):
                tasks.create_task(self._work(), name=f"{self._name}-{number}")

    def _postpone(self, key: str, after: float) -> None:
        due = asyncio.get_running_loop().time() + after
        if self._due.get(key, float("inf")) <= due:
            return
        self._due[key] = due
        heapq.heappush(self._later, (due, next(self._order), key))
        self._wake.set()

    async def _clock(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._wake.clear()
            self._release_due(loop.time())
            pause = self._later[0][0] - loop.time() if self._later else None
            try:
                async with asyncio.timeout(pause):
                    await self._wake.wait()
            except TimeoutError:
                continue

    def _release_due(self, now: float) -> None:
        while self._later and self._later[0][0] <= now:
            due, _, key = heapq.heappop(self._later)
            if self._due.get(key) == due:
                del self._due[key]
                self.add(key)

    async def _work(self) -> None:
        while True:
            key = await self._ready.get()
            self._waiting.discard(key)
            self._active.add(key)
            try:
                await self._once(key)
            finally:
                self._active.discard(key)
                if key in self._again:
                    self._again.discard(key)
                    self.add(key)

    async def _once(self, key: str) -> None:
        try:
            after = await self._reconcile(key)
        except errors.Conflict as error:
            logger.debug("%s %s: lost a race: %s", self._name, key, error)
            self._retry(key)
        except errors.KubeError as error:
            logger.warning("%s %s: %s", self._name, key, error)
            self._retry(key)
        except Exception:
            logger.exception("%s %s failed", self._name, key)
            self._retry(key)
        else:
            self._failures.pop(key, None)
            if after is not None:
                self.add(key, after=after)

    def _retry(self, key: str) -> None:
        self._failures[key] = self._failures.get(key, 0) + 1
        self.add(key, after=backoff(self._failures[key], jitter=random.random()))  # noqa: S311 - spreads load, guards nothing
