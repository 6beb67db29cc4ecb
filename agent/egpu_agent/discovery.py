"""Providers and isolations: our own, and those that other distributions register by entry point.

An out-of-tree one is a callable that takes the agent's :class:`egpu_agent.settings.Settings` and returns an object with
the protocol's methods. One that cannot be loaded is said and left out.
"""

import logging
from collections.abc import Callable, Iterable
from importlib.metadata import EntryPoint, entry_points
from typing import Final

from egpu_agent.crash import Steps, no_steps
from egpu_agent.isolation.base import Isolation
from egpu_agent.isolation.libvgpu import Libvgpu
from egpu_agent.isolation.none import NoIsolation
from egpu_agent.providers.base import Provider
from egpu_agent.providers.nvidia import Nvidia
from egpu_agent.settings import Settings

logger = logging.getLogger(__name__)

PROVIDERS: Final = "elasticgpu.providers"
ISOLATIONS: Final = "elasticgpu.isolations"

Find = Callable[[str], Iterable[EntryPoint]]


def _installed(group: str) -> Iterable[EntryPoint]:
    return entry_points(group=group)


def providers(settings: Settings, *, find: Find = _installed) -> tuple[Provider, ...]:
    """NVIDIA's cards, then what others bring."""
    own = Nvidia(roots=settings.driver_roots, toolkit=settings.toolkit_dirs, extra_models=settings.models)
    return (own, *(thing for thing in _load(find(PROVIDERS), settings) if isinstance(thing, Provider)))


def isolations(settings: Settings, *, steps: Steps = no_steps, find: Find = _installed) -> dict[str, Isolation]:
    """By name; ours cannot be replaced."""
    own = (Libvgpu(slices=settings.slices_dir, lib=settings.library_dir, steps=steps), NoIsolation())
    found = [thing for thing in _load(find(ISOLATIONS), settings) if isinstance(thing, Isolation)]
    return {isolation.name: isolation for isolation in (*found, *own)}


def _load(points: Iterable[EntryPoint], settings: Settings) -> Iterable[object]:
    for point in points:
        try:
            yield point.load()(settings)
        except Exception:
            logger.exception("%s %s (%s) cannot be loaded and is left out", point.group, point.name, point.value)
