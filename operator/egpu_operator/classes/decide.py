"""What is to be done about a class. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from egpu import names, reasons
from egpu.events import Event, warning
from egpu.types import GPUClass

SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What the finalizers are to be, or None to leave them; what to say."""

    finalizers: tuple[str, ...] | None = None
    event: Event | None = None


def decide(gpu_class: GPUClass, *, claims: Sequence[str]) -> Decision:
    """Protects a class that claims use, and lets go of one that is being deleted when none does.

    Slices do not hold their class: they carry a copy of what they need of it.
    """
    held = gpu_class.metadata.finalizers
    protected, used = names.FINALIZER_CLASS in held, bool(claims)
    if not gpu_class.metadata.deleting:
        return Decision(finalizers=(*held, names.FINALIZER_CLASS)) if used and not protected else Decision()
    if not protected:
        return Decision()
    if not used:
        return Decision(finalizers=tuple(name for name in held if name != names.FINALIZER_CLASS))
    message = reasons.class_in_use(users(claims))
    return Decision(event=warning(reason=reasons.IN_USE, action="Deleting", note=message))


def users(claims: Sequence[str]) -> str:
    """Who uses a class: ``claims default/a, default/b and 3 more``."""
    more = len(claims) - SHOWN
    listed = ", ".join(claims[:SHOWN]) + (f" and {more} more" if more > 0 else "")
    return f"claim{'s' if len(claims) > 1 else ''} {listed}"
