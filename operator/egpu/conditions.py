"""Standard conditions: merged by type, their transition time moved by a change of status alone."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from egpu.types import Condition


def find(conditions: Iterable[Condition], kind: str) -> Condition | None:
    """The condition of a type, or None."""
    return next((condition for condition in conditions if condition.type == kind), None)


def holds(conditions: Iterable[Condition], kind: str) -> bool:
    """Whether the condition of a type is there and ``True``."""
    found = find(conditions, kind)
    return found is not None and found.status == "True"


def merge(
    old: Sequence[Condition],
    *,
    kind: str,
    status: bool | None,
    reason: str,
    message: str,
    generation: int,
    now: datetime,
) -> tuple[Condition, ...]:
    """The conditions with one of them set; equal input gives an equal result, so that nothing needs to be written.

    Args:
        old: the conditions there are.
        kind: type of the one to set.
        status: True, False, or None for Unknown.
        reason: constant in CamelCase.
        message: the same for people.
        generation: of the object this speaks of.
        now: transition time, should the status change.
    """
    word = "Unknown" if status is None else str(status)
    before = find(old, kind)
    since = before.last_transition_time if before and before.status == word else now
    fresh = Condition(
        type=kind,
        status=word,
        reason=reason,
        message=message,
        observed_generation=generation,
        last_transition_time=since,
    )
    if before is None:
        return (*old, fresh)
    return tuple(fresh if condition.type == kind else condition for condition in old)


def to_wire(conditions: Iterable[Condition]) -> list[dict[str, Any]]:
    """Conditions as the API server stores them; times in whole seconds, as metav1.Time has them."""
    return [
        {
            "type": condition.type,
            "status": condition.status,
            "reason": condition.reason,
            "message": condition.message,
            "observedGeneration": condition.observed_generation,
            "lastTransitionTime": timestamp(condition.last_transition_time),
        }
        for condition in conditions
    ]


def timestamp(moment: datetime) -> str:
    """RFC 3339 in UTC, whole seconds."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
