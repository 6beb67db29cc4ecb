"""Isolation by the interception library: limits page, usage region, ld.so.preload and libvgpu.so."""

import hashlib
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from egpu import names
from egpu.types import CardShare
from egpu.types import Isolation as Kind
from egpu_agent import cdi, files
from egpu_agent.crash import Steps, no_steps
from egpu_agent.isolation.base import Grant, IsolationError
from egpu_vgpu import library_path, limits, usage

WHOLE: Final = 100


class Libvgpu:
    """Slices as ``slices/<uid>/{limits,usage}`` below the state folder, the library below ``lib``."""

    def __init__(
        self, *, slices: Path, lib: Path, library: Callable[[], Path] = library_path, steps: Steps = no_steps
    ) -> None:
        self._slices = slices
        self._lib = lib
        self._library = library
        self._steps = steps
        self._installed: Path | None = None

    @property
    def name(self) -> str:
        """As in a class's ``isolation``."""
        return Kind.LIBVGPU.value

    def install(self, *, used: Sequence[str]) -> None:
        """Copies the library under its digest, so that a new one never changes under a running container."""
        try:
            content = self._library().read_bytes()
        except OSError as error:
            raise IsolationError(
                f"libvgpu.so is not in this agent's image: {error}; build it, then the image"
            ) from error
        self._lib.mkdir(parents=True, exist_ok=True)
        files.remove_leftovers(self._lib, prefix="")
        target = self._lib / f"libvgpu-{hashlib.sha256(content).hexdigest()[:16]}.so"
        if not target.exists():
            files.write(target, content, mode=0o755, sync=True)
        self._write_preload()
        self._installed = target
        for old in self._lib.glob("libvgpu-*.so"):
            if old != target and str(old) not in used:
                old.unlink(missing_ok=True)

    def prepare(self, grant: Grant) -> cdi.Edits:
        """Limits page and usage region of the slice, and the mounts of a container."""
        if self._installed is None:
            self.install(used=tuple(str(path) for path in self._lib.glob("libvgpu-*.so")))
        folder = self._slices / grant.slice_uid
        try:
            folder.mkdir(parents=True, exist_ok=True)
            limits.write(folder / "limits", _page(grant))
            self._steps("limits-written")
            usage.create(folder / "usage", grant.slice_uid, [card.uuid for card in grant.cards])
            self._steps("usage-created")
        except (OSError, limits.LimitsError, usage.UsageError) as error:
            raise IsolationError(f"limits of slice {grant.slice_uid} cannot be written: {error}") from error
        return {"mounts": self._mounts(folder)}

    def update(self, grant: Grant) -> None:
        """Rewrites the limits page in place; containers see it without a restart."""
        path = self._slices / grant.slice_uid / "limits"
        if path.exists():
            limits.write(path, _page(grant))

    def remove(self, slice_uid: str) -> None:
        """Removes limits page and usage region."""
        shutil.rmtree(self._slices / slice_uid, ignore_errors=True)

    def present(self) -> set[str]:
        """Every folder there is."""
        return {path.name for path in self._slices.iterdir()} if self._slices.is_dir() else set()

    def _mounts(self, folder: Path) -> list[dict[str, object]]:
        library = self._installed
        if library is None:
            raise IsolationError("libvgpu.so is not installed on this node")
        return [
            cdi.mount(folder / "limits", names.CONTAINER_LIMITS),
            cdi.mount(folder / "usage", names.CONTAINER_USAGE, writable=True),
            cdi.mount(library, names.CONTAINER_LIBRARY),
            cdi.mount(self._lib / "ld.so.preload", names.CONTAINER_PRELOAD),
        ]

    def _write_preload(self) -> None:
        path = self._lib / "ld.so.preload"
        content = f"{names.CONTAINER_LIBRARY}\n".encode()
        if not path.exists() or path.read_bytes() != content:
            files.write(path, content, sync=True)


def _page(grant: Grant) -> limits.LimitsPage:
    return limits.LimitsPage(slice_uid=grant.slice_uid, cards=tuple(_limit(card) for card in grant.cards))


def _limit(card: CardShare) -> limits.CardLimit:
    """A slice that set no compute aside is not limited in it."""
    return limits.CardLimit(uuid=card.uuid, memory=card.memory, core=card.core or WHOLE)
