"""CDI specs: what a container gets, in the form the runtime reads.

The format is https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md. ``Edits`` is its
``containerEdits``, kept as it stands on the wire, so that edits of the driver's own specs pass through unchanged.
"""

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from egpu import names
from egpu.types import Card
from egpu_agent import files

logger = logging.getLogger(__name__)

Edits = dict[str, Any]

PREFIX: Final = "elasticgpu.io-slice-"
SUFFIX: Final = ".json"
ANNOTATION_ATTACHMENT: Final = f"{names.GROUP}/attachment"
RESERVED_PATHS: Final = frozenset(
    (names.CONTAINER_LIMITS, names.CONTAINER_USAGE, names.CONTAINER_LIBRARY, names.CONTAINER_PRELOAD)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolkitSpec:
    """A spec of the driver's: its edits for every container, and those of each device by name."""

    version: str
    common: Edits
    devices: Mapping[str, Edits]


def merge(parts: Iterable[Edits]) -> Edits:
    """Edits one after the other; what is there twice stays once, and the first mount of a path holds."""
    merged: Edits = {}
    for part in parts:
        for key, value in part.items():
            if isinstance(value, list):
                held = merged.setdefault(key, [])
                held.extend(entry for entry in value if entry not in held)
            else:
                merged.setdefault(key, value)
    if "mounts" in merged:
        first = {mount["containerPath"]: mount for mount in reversed(merged["mounts"])}
        merged["mounts"] = [mount for mount in merged["mounts"] if first[mount["containerPath"]] is mount]
    return merged


def mount(host: Path, container: str, *, writable: bool = False) -> dict[str, Any]:
    """A bind mount of a file."""
    return {
        "hostPath": str(host),
        "containerPath": container,
        "options": ["rw" if writable else "ro", "bind", "nosuid", "nodev"],
    }


def parse_toolkit(content: bytes) -> ToolkitSpec | None:
    """A spec of the driver's kind, in JSON or YAML; None for any other file."""
    try:
        raw = yaml.safe_load(content)
        if raw["kind"] != names.TOOLKIT_CDI_KIND:
            return None
        devices = {str(device["name"]): device.get("containerEdits") or {} for device in raw["devices"]}
        return ToolkitSpec(version=raw["cdiVersion"], common=raw.get("containerEdits") or {}, devices=devices)
    except (yaml.YAMLError, KeyError, TypeError, AttributeError, UnicodeDecodeError):
        return None


def read_toolkit(folders: tuple[Path, ...]) -> tuple[ToolkitSpec, ...]:
    """The driver's specs in some folders."""
    found = files.read_all(folders, suffixes=(".json", ".yaml", ".yml"))
    ours = (PREFIX,)
    specs = (parse_toolkit(content) for path, content in found if not path.name.startswith(ours))
    return tuple(spec for spec in specs if spec is not None)


def toolkit_edits(specs: Iterable[ToolkitSpec], cards: Sequence[Card]) -> tuple[Edits, str] | None:
    """Edits for some cards from the first spec that has them all, by UUID or else by index, and its version."""
    for spec in specs:
        by_uuid = [spec.devices.get(card.uuid, spec.devices.get(str(card.index))) for card in cards]
        found = [edits for edits in by_uuid if edits is not None]
        if cards and len(found) == len(cards):
            return _without_reserved(merge([spec.common, *found])), spec.version
    return None


def build(nonce: str, *, edits: Edits, annotation: str, version: str = names.CDI_VERSION) -> dict[str, Any]:
    """The spec of one nonce; its version is the higher of ours and the merged edits'."""
    return {
        "cdiVersion": max(names.CDI_VERSION, version, key=ordered),
        "kind": names.CDI_KIND,
        "annotations": {ANNOTATION_ATTACHMENT: annotation},
        "devices": [{"name": nonce, "containerEdits": edits}],
    }


class SpecFiles:
    """Our specs on this node, one a nonce, each written once and never changed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        files.remove_leftovers(folder, prefix=PREFIX)

    def write(self, nonce: str, spec: Mapping[str, Any]) -> None:
        """Puts a spec in place, unless there is one."""
        path = self._path(nonce)
        if not path.exists():
            files.write(path, json.dumps(spec, indent=1).encode())

    def exists(self, nonce: str) -> bool:
        """Whether a nonce resolves."""
        return self._path(nonce).exists()

    def remove(self, nonces: Iterable[str]) -> None:
        """Makes nonces resolve to nothing."""
        for nonce in nonces:
            self._path(nonce).unlink(missing_ok=True)

    def nonces(self) -> set[str]:
        """Every nonce that resolves now."""
        return {path.name[len(PREFIX) : -len(SUFFIX)] for path in self._folder.glob(f"{PREFIX}*{SUFFIX}")}

    def annotation(self, nonce: str) -> str | None:
        """What was noted in a spec, None where it cannot be read."""
        try:
            return str(json.loads(self._path(nonce).read_bytes())["annotations"][ANNOTATION_ATTACHMENT])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def host_paths(self) -> set[str]:
        """Every file of the node that a spec of ours mounts."""
        found = files.read_all((self._folder,), suffixes=(SUFFIX,))
        return {path for file, content in found if file.name.startswith(PREFIX) for path in _host_paths(content)}

    def _path(self, nonce: str) -> Path:
        return self._folder / f"{PREFIX}{nonce}{SUFFIX}"


def _without_reserved(edits: Edits) -> Edits:
    if "mounts" not in edits:
        return edits
    mounts = [entry for entry in edits["mounts"] if entry["containerPath"] not in RESERVED_PATHS]
    return {**edits, "mounts": mounts}


def _host_paths(content: bytes) -> list[str]:
    try:
        devices = json.loads(content)["devices"]
        return [entry["hostPath"] for device in devices for entry in device["containerEdits"].get("mounts", ())]
    except (ValueError, KeyError, TypeError):
        return []


def ordered(version: str) -> tuple[int, ...]:
    """A CDI version as something that compares."""
    return tuple(int(part) for part in version.split(".") if part.isdigit())
