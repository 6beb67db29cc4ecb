"""The work queue: coalescing, one worker a key, backing off."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from egpu import errors
from egpu.workqueue import BACKOFF_MOST, WorkQueue, backoff


@contextlib.asynccontextmanager
async def working(queue: WorkQueue) -> AsyncIterator[None]:
    task = asyncio.create_task(queue.run())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_a_key_added_often_is_reconciled_once() -> None:
    seen: list[str] = []
    done = asyncio.Event()

    async def reconcile(key: str) -> None:
        seen.append(key)
        if key == "last":
            done.set()

    queue = WorkQueue(reconcile, name="t", workers=1)
    for _ in range(5):
        queue.add("a")
    queue.add("last")
    async with working(queue), asyncio.timeout(5):
        await done.wait()
    assert seen == ["a", "last"]


async def test_a_key_added_while_in_work_comes_again_but_never_twice_at_once() -> None:
    running = 0
    most = 0
    count = 0
    done = asyncio.Event()

    async def reconcile(key: str) -> None:
        nonlocal running, most, count
        running += 1
        most = max(most, running)
        count += 1
        if count == 1:
            queue.add(key)
            await asyncio.sleep(0)
        running -= 1
        if count == 2:
            done.set()

    queue = WorkQueue(reconcile, name="t", workers=4)
    queue.add("a")
    async with working(queue), asyncio.timeout(5):
        await done.wait()
    assert (most, count) == (1, 2)


@pytest.mark.parametrize(
    "error", [errors.Conflict("raced"), errors.Retry("busy"), RuntimeError("bug")], ids=["conflict", "retry", "bug"]
)
async def test_a_failed_key_comes_back_until_it_succeeds(error: Exception) -> None:
    tries = 0
    done = asyncio.Event()

    async def reconcile(_: str) -> None:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise error
        done.set()

    queue = WorkQueue(reconcile, name="t")
    queue.add("a")
    async with working(queue), asyncio.timeout(5):
        await done.wait()
    assert tries == 3


async def test_the_earlier_of_two_wishes_counts() -> None:
    done = asyncio.Event()

    async def reconcile(_: str) -> None:
        done.set()

    queue = WorkQueue(reconcile, name="t")
    queue.add("a", after=60)
    queue.add("a", after=0.01)
    async with working(queue), asyncio.timeout(5):
        await done.wait()


@pytest.mark.parametrize(("failures", "least", "most"), [(1, 0.025, 0.05), (3, 0.1, 0.2), (40, 30.0, BACKOFF_MOST)])
def test_backoff_grows_and_ends(failures: int, least: float, most: float) -> None:
    assert backoff(failures, jitter=0.0) == pytest.approx(least)
    assert backoff(failures, jitter=1.0) == pytest.approx(most)
