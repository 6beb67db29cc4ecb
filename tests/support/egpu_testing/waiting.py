"""Waiting for a condition, never for time to pass."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class Timeout(AssertionError):
    """What was waited for did not come; the message says what was seen last."""


def until(what: str, probe: Callable[[], T | None], *, timeout: float = 60.0, every: float = 0.1) -> T:
    """The first answer of ``probe`` that is true.

    Args:
        what: names the condition in the message.
        probe: asked again and again; it may answer anything false, or raise LookupError, for not yet.
        timeout: seconds.
        every: seconds between two probes.

    Raises:
        Timeout: it did not come in time.
    """
    deadline = time.monotonic() + timeout
    last: object = None
    while True:
        try:
            answer = probe()
        except LookupError as error:
            answer, last = None, error
        if answer:
            return answer
        last = answer if answer is not None else last
        if time.monotonic() > deadline:
            raise Timeout(f"not so within {timeout:g} s: {what} (last seen: {last!r})")
        time.sleep(every)
