"""Put the simulated driver where a real one would be: driver root, and a CDI spec as NVIDIA's toolkit writes it."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any, Final

import yaml

from gpusim.build import LIBRARIES
from gpusim.state import CARDS_DIR, SOCKET_FILE, STATE_FILE

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from gpusim.config import Card, Node

DRIVER_ROOT: Final = "run/nvidia/driver"
LIBRARY_DIR: Final = "usr/lib/x86_64-linux-gnu"
CDI_FILE: Final = "var/run/cdi/nvidia.yaml"
CDI_VERSION: Final = "0.6.0"
CDI_KIND: Final = "nvidia.com/gpu"
NODE_DIR: Final = "/dev/gpusim"
_MOUNT_OPTIONS: Final = ["nosuid", "nodev", "bind"]


def install(*, node: Node, built: Path, root: Path) -> Path:
    """Copy the libraries and write the CDI spec under `root`; returns the spec's path. Repeatable."""
    libraries = root / DRIVER_ROOT / LIBRARY_DIR
    libraries.mkdir(parents=True, exist_ok=True)
    for library in LIBRARIES:
        fresh = libraries / f"{library.soname}.new"
        shutil.copy2(built / library.soname, fresh)
        fresh.replace(libraries / library.soname)
        link = libraries / library.link
        link.unlink(missing_ok=True)
        link.symlink_to(library.soname)
    path = root / CDI_FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".new")
    fresh.write_text(yaml.safe_dump(cdi_spec(node.cards), sort_keys=False))
    fresh.replace(path)
    return path


def cdi_spec(cards: Sequence[Card]) -> dict[str, Any]:
    """The CDI spec: each card by index and by UUID, and `all` of them."""
    devices = [{"name": str(card.index), "containerEdits": _card_edits([card])} for card in cards]
    devices += [{"name": card.uuid, "containerEdits": _card_edits([card])} for card in cards]
    if cards:
        devices.append({"name": "all", "containerEdits": _card_edits(cards)})
    return {"cdiVersion": CDI_VERSION, "kind": CDI_KIND, "devices": devices, "containerEdits": _common_edits()}


def _card_edits(cards: Sequence[Card]) -> dict[str, Any]:
    return {"mounts": [_mount(f"{NODE_DIR}/{CARDS_DIR}/{card.uuid}", mode="ro") for card in cards]}


def _common_edits() -> dict[str, Any]:
    mounts = [_mount(f"{NODE_DIR}/{name}", mode="rw") for name in (STATE_FILE, SOCKET_FILE)]
    for library in LIBRARIES:
        host = f"/{DRIVER_ROOT}/{LIBRARY_DIR}/{library.soname}"
        mounts += [_mount(host, f"/{LIBRARY_DIR}/{name}", mode="ro") for name in (library.soname, library.link)]
    return {"env": ["NVIDIA_VISIBLE_DEVICES=void"], "mounts": mounts}


def _mount(host: str, container: str | None = None, *, mode: str) -> dict[str, Any]:
    return {"hostPath": host, "containerPath": container or host, "options": [mode, *_MOUNT_OPTIONS]}
