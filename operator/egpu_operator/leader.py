"""Leadership by a Lease: one replica works, the others wait; deciding is pure, writing is compare-and-swap.

A leader that cannot renew stops by itself before anybody else may begin. Even so two may overlap (a stopped process, a
clock that jumps): no booking relies on leadership, it only keeps replicas from doing the same work twice.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum, auto
from typing import Any

from egpu import errors, names
from egpu.kube import Kube, Object
from egpu.resources import LEASES
from egpu_operator.settings import Settings

log = logging.getLogger(__name__)


class Move(Enum):
    """What to do about a Lease."""

    CREATE = auto()
    TAKE = auto()
    RENEW = auto()
    WAIT = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A Lease as last read.

    Attributes:
        holder: identity of the leader; empty after a release.
        since: moment on our own clock (seconds) at which this very state was first seen; clocks of two machines are
            never compared.
        seconds: how long after ``since`` the leader has lost.
    """

    holder: str
    since: float
    seconds: float


def decide(now: float, seen: Seen | None, me: str) -> Move:
    """The move of ``me`` at ``now``, both on our own clock."""
    if seen is None:
        return Move.CREATE
    if seen.holder == me:
        return Move.RENEW
    free = not seen.holder or now >= seen.since + seen.seconds
    return Move.TAKE if free else Move.WAIT


def lease_spec(lease: Object | None, *, me: str, seconds: int, now: datetime) -> dict[str, Any]:
    """The spec of a Lease that ``me`` holds from ``now``; a change of hands is counted."""
    old = dict((lease or {}).get("spec") or {})
    stamp = now.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    changed = old.get("holderIdentity") != me
    return {
        **old,
        "holderIdentity": me,
        "leaseDurationSeconds": seconds,
        "renewTime": stamp,
        "acquireTime": stamp if changed else old.get("acquireTime", stamp),
        "leaseTransitions": int(old.get("leaseTransitions") or 0) + (1 if changed and lease else 0),
    }


class Leadership:
    """Runs one piece of work while this replica holds the Lease.

    Attributes:
        leading: whether the work is running now.
    """

    def __init__(self, kube: Kube, settings: Settings) -> None:
        self._kube = kube
        self._settings = settings
        self._lease: Object | None = None
        self._seen: Seen | None = None
        self.leading = False

    async def hold(self, work: Callable[[], Awaitable[None]]) -> None:
        """Waits for the Lease, then works; returns when the work ends or the Lease is lost, and lets go of it.

        Cancelling stops the work, then releases the Lease.
        """
        while not await self._step():  # noqa: ASYNC110 - what is waited for happens in another process
            await asyncio.sleep(self._settings.leader.retry)
        log.info("leading as %s", self._settings.identity)
        task = asyncio.ensure_future(work())
        keeper = asyncio.create_task(self._keep())
        self.leading = True
        try:
            await asyncio.wait({task, keeper}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.leading = False
            await _stop(task, keeper)
            await self._release()
        if not task.cancelled():
            task.result()

    async def _keep(self) -> None:
        """Returns when the Lease is another's, or could not be renewed for ``deadline`` seconds."""
        clock = asyncio.get_running_loop().time
        limit = self._settings.leader.deadline
        renewed = clock()
        while True:
            await asyncio.sleep(min(self._settings.leader.retry, max(0.0, renewed + limit - clock())))
            started = clock()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(renewed + limit):
                    if await self._step():
                        renewed = started
                    elif self._seen and self._seen.holder != self._settings.identity:
                        log.error("the Lease is %s's now: stopping work", self._seen.holder or "nobody")
                        return
            if clock() >= renewed + limit:
                log.error("the Lease was not renewed for %s s: stopping work", limit)
                return

    async def _step(self) -> bool:
        """One look at the Lease and, where it is ours to take, one write; whether it is ours now."""
        me = self._settings.identity
        try:
            self._observe(await self._kube.find(LEASES, names.LEASE, namespace=self._settings.namespace))
            move = decide(asyncio.get_running_loop().time(), self._seen, me)
            if move is Move.WAIT:
                return False
            self._observe(await self._write(move))
        except errors.Conflict:
            return False
        except errors.KubeError as error:
            log.warning("the Lease could not be read or written: %s", error)
            return False
        return True

    async def _write(self, move: Move) -> Object:
        namespace = self._settings.namespace
        seconds = self._settings.leader.lease
        spec = lease_spec(self._lease, me=self._settings.identity, seconds=seconds, now=datetime.now(UTC))
        if move is Move.CREATE or self._lease is None:
            body = {
                "apiVersion": LEASES.api_version,
                "kind": LEASES.kind,
                "metadata": {"name": names.LEASE},
                "spec": spec,
            }
            return await self._kube.create(LEASES, body, namespace=namespace)
        return await self._kube.replace(LEASES, {**self._lease, "spec": spec}, name=names.LEASE, namespace=namespace)

    def _observe(self, lease: Object | None) -> None:
        """Remembers a Lease; the clock of its holder starts anew only when it has changed."""
        before, self._lease = self._lease, lease
        if lease is None:
            self._seen = None
            return
        spec = lease.get("spec") or {}
        same = before is not None and _version(before) == _version(lease) and self._seen is not None
        since = self._seen.since if same and self._seen else asyncio.get_running_loop().time()
        self._seen = Seen(
            holder=spec.get("holderIdentity") or "",
            since=since,
            seconds=float(spec.get("leaseDurationSeconds") or self._settings.leader.lease),
        )

    async def _release(self) -> None:
        """Lets go of the Lease so that another replica need not wait; a failure costs only that wait."""
        if not (self._lease and self._seen and self._seen.holder == self._settings.identity):
            return
        spec = {**self._lease["spec"], "holderIdentity": "", "leaseDurationSeconds": 1}
        try:
            async with asyncio.timeout(2):
                await self._kube.replace(
                    LEASES, {**self._lease, "spec": spec}, name=names.LEASE, namespace=self._settings.namespace
                )
        except (TimeoutError, errors.KubeError) as error:
            log.warning("the Lease could not be released: %r", error)
        self._lease = self._seen = None


def _version(lease: Object) -> str:
    return str(lease["metadata"]["resourceVersion"])


async def _stop(*tasks: asyncio.Future[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
