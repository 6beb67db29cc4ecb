"""Named points between steps whose order matters, so that tests can end the agent at each of them."""

from collections.abc import Callable
from typing import Final

Steps = Callable[[str], None]
"""Called with the name of a point that has been reached."""

POINTS: Final = (
    "allocate-stored",
    "limits-written",
    "usage-created",
    "attachment-stored",
    "spec-written",
    "revoked-stored",
    "specs-removed",
    "slice-removed",
    "tickets-dropped",
)


def no_steps(_: str) -> None:
    """What a running agent does at them: nothing."""
