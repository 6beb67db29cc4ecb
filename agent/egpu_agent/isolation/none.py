"""No isolation: the slice is booked and shown, nothing holds the container to it."""

from collections.abc import Sequence

from egpu.types import Isolation as Kind
from egpu_agent.cdi import Edits
from egpu_agent.isolation.base import Grant


class NoIsolation:
    """Cards as they are."""

    @property
    def name(self) -> str:
        """As in a class's ``isolation``."""
        return Kind.NONE.value

    def install(self, *, used: Sequence[str]) -> None:
        """Nothing is shared."""

    def prepare(self, grant: Grant) -> Edits:  # noqa: ARG002 - every slice looks the same
        """Nothing but the cards."""
        return {}

    def update(self, grant: Grant) -> None:
        """Nothing is limited."""

    def remove(self, slice_uid: str) -> None:
        """Nothing was written."""

    def present(self) -> set[str]:
        """No slice has anything here."""
        return set()
