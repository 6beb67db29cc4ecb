"""OCI image archives, written without any container tool. The same content gives the same bytes."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

_PREFIX = "application/vnd.oci.image"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """A tar file, not compressed, with its digest."""

    path: Path
    digest: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """What an archive is to hold."""

    name: str
    """With registry and tag, as the kubelet will ask for it."""
    layers: tuple[Layer, ...]
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    environment: tuple[str, ...] = ()
    user: str = ""


def layer(path: Path) -> Layer:
    """Measure a tar file."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return Layer(path=path, digest=f"sha256:{digest}", size=path.stat().st_size)


def pack(target: Path, files: Mapping[str, Path]) -> Layer:
    """Write a layer of files and folders, by their places in the image; all owned by root and from the year 1970."""
    scratch = target.with_name(f".{target.name}.{os.getpid()}")
    with tarfile.open(scratch, "w", format=tarfile.GNU_FORMAT) as tar:
        for place in _parents(files):
            entry = tarfile.TarInfo(place)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(entry)
        for place, source in sorted(files.items()):
            tar.add(source, place, filter=_anonymous)
    scratch.rename(target)
    return layer(target)


def _anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    entry.mode = 0o755 if entry.isdir() or entry.mode & 0o100 else 0o644
    return entry


def _parents(places: Iterable[str]) -> list[str]:
    found = {"/".join(place.split("/")[:depth]) for place in places for depth in range(1, place.count("/") + 1)}
    return sorted(found)


def write(target: Path, *images: Image) -> None:
    """Write the archive, which `ctr images import` and `docker load` take. A layer that images share is in it once."""
    blobs: dict[str, bytes | Layer] = {}
    manifests = []
    for image in images:
        config = _json(_config(image))
        manifest = _json(_manifest(image, config))
        blobs |= {_digest(config): config, _digest(manifest): manifest, **{item.digest: item for item in image.layers}}
        manifests.append(_entry(image, manifest))
    scratch = target.with_name(f".{target.name}.{os.getpid()}")
    with tarfile.open(scratch, "w", format=tarfile.GNU_FORMAT) as tar:
        _add(tar, "oci-layout", _json({"imageLayoutVersion": "1.0.0"}))
        _add(tar, "index.json", _json({"schemaVersion": 2, "manifests": manifests}))
        for digest, blob in blobs.items():
            _add(tar, f"blobs/sha256/{digest.removeprefix('sha256:')}", blob)
    scratch.rename(target)


def _config(image: Image) -> dict[str, object]:
    run: dict[str, object] = {"Env": list(image.environment), "WorkingDir": "/", "User": image.user}
    if image.entrypoint:
        run["Entrypoint"] = list(image.entrypoint)
    if image.command:
        run["Cmd"] = list(image.command)
    layers = [item.digest for item in image.layers]
    return {"architecture": "amd64", "os": "linux", "config": run, "rootfs": {"type": "layers", "diff_ids": layers}}


def _manifest(image: Image, config: bytes) -> dict[str, object]:
    layers = [
        {"mediaType": f"{_PREFIX}.layer.v1.tar", "digest": item.digest, "size": item.size} for item in image.layers
    ]
    return {
        "schemaVersion": 2,
        "mediaType": f"{_PREFIX}.manifest.v1+json",
        "config": _descriptor(f"{_PREFIX}.config.v1+json", config),
        "layers": layers,
    }


def _entry(image: Image, manifest: bytes) -> dict[str, object]:
    names = {
        "io.containerd.image.name": image.name,
        "org.opencontainers.image.ref.name": image.name.rpartition(":")[2],
    }
    return {**_descriptor(f"{_PREFIX}.manifest.v1+json", manifest), "annotations": names}


def _descriptor(kind: str, content: bytes) -> dict[str, object]:
    return {"mediaType": kind, "digest": _digest(content), "size": len(content)}


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _json(document: object) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()


def _add(tar: tarfile.TarFile, name: str, content: bytes | Layer) -> None:
    entry = tarfile.TarInfo(name)
    if isinstance(content, bytes):
        entry.size = len(content)
        tar.addfile(entry, io.BytesIO(content))
        return
    entry.size = content.size
    with content.path.open("rb") as file:
        tar.addfile(entry, file)
