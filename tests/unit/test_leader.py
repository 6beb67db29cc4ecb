"""Who leads, by the Lease and one's own clock."""

from datetime import UTC, datetime
from typing import Any

import pytest

from egpu_operator.leader import Move, Seen, decide, lease_spec

T = 1000.0


def seen(holder: str, seconds: float = 15) -> Seen:
    return Seen(holder=holder, since=T, seconds=seconds)


CASES: dict[str, tuple[float, Seen | None, Move]] = {
    "no lease": (T, None, Move.CREATE),
    "mine": (T, seen("me"), Move.RENEW),
    "mine, long ago (a restarted container)": (T + 1e6, seen("me"), Move.RENEW),
    "another's, just seen": (T, seen("you"), Move.WAIT),
    "another's, almost over": (T + 14.9, seen("you"), Move.WAIT),
    "another's, over": (T + 15, seen("you"), Move.TAKE),
    "another's, its own longer term": (T + 15, seen("you", 60), Move.WAIT),
    "released": (T, seen(""), Move.TAKE),
}


@pytest.mark.parametrize(("now", "lease", "expected"), CASES.values(), ids=CASES)
def test_decide(now: float, lease: Seen | None, expected: Move) -> None:
    assert decide(now, lease, "me") is expected


MOMENT = datetime(2026, 1, 1, 12, tzinfo=UTC)
STAMP = "2026-01-01T12:00:00.000000Z"
SPECS: dict[str, tuple[dict[str, Any] | None, dict[str, Any]]] = {
    "first": (None, {"acquireTime": STAMP, "leaseTransitions": 0}),
    "renewed": (
        {"holderIdentity": "me", "acquireTime": "t0", "leaseTransitions": 3},
        {"acquireTime": "t0", "leaseTransitions": 3},
    ),
    "taken": (
        {"holderIdentity": "you", "acquireTime": "t0", "leaseTransitions": 3},
        {"acquireTime": STAMP, "leaseTransitions": 4},
    ),
    "taken after a release": ({"holderIdentity": ""}, {"acquireTime": STAMP, "leaseTransitions": 1}),
}


@pytest.mark.parametrize(("old", "expected"), SPECS.values(), ids=SPECS)
def test_lease_spec(old: dict[str, Any] | None, expected: dict[str, Any]) -> None:
    spec = lease_spec(None if old is None else {"spec": old}, me="me", seconds=15, now=MOMENT)
    assert spec == {"holderIdentity": "me", "leaseDurationSeconds": 15, "renewTime": STAMP, **expected}
