"""What the probes ask: alive, and ready to serve."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

Check = Callable[[], str | None]
"""What is wrong in a sentence, or None."""


@dataclass(slots=True, kw_only=True)
class Health:
    """Checks by name; adding one under a known name replaces it.

    Attributes:
        live: a fault here is mended by a restart alone.
        ready: a fault here may pass.
        started: moment of the start, on the monotonic clock.
    """

    live: dict[str, Check] = field(default_factory=dict)
    ready: dict[str, Check] = field(default_factory=dict)
    started: float = field(default_factory=time.monotonic)

    def faults(self, *, live: bool) -> list[str]:
        """The faults there are, each with its check's name; a check that breaks is one."""
        return [text for name, check in (self.live if live else self.ready).items() if (text := _ask(name, check))]


def _ask(name: str, check: Check) -> str | None:
    try:
        fault = check()
    except Exception as error:  # noqa: BLE001 - a probe answers whatever happens
        return f"{name}: {error!r}"
    return f"{name}: {fault}" if fault else None
