"""The Python packages of an image: those of this virtual environment that the project needs at run time.

They are copied as installed, so the image has the very versions that the tests ran with, and nothing is downloaded.
"""

from __future__ import annotations

import compileall
import hashlib
import importlib.metadata
import py_compile
import shutil
import tempfile
from pathlib import Path

from packaging.requirements import Requirement

from localcluster import oci
from localcluster.errors import ClusterError

PROJECT = "elasticgpu"
EXTRAS = ("operator", "agent")
_SKIPPED_FOLDERS = frozenset({"__pycache__", "test", "tests", "e2e_test"})
_RECIPE = 1


def distributions(
    project: str = PROJECT, extras: tuple[str, ...] = EXTRAS
) -> dict[str, importlib.metadata.Distribution]:
    """The distributions that the project needs with these extras, by name, itself left out."""
    found: dict[str, importlib.metadata.Distribution] = {}
    wanted = _requirements(project, extras)
    while wanted:
        requirement = wanted.pop()
        name = requirement.name.lower().replace("_", "-")
        if name not in found:
            found[name] = _installed(name)
            wanted += _requirements(name, tuple(requirement.extras))
    return dict(sorted(found.items()))


def _requirements(name: str, extras: tuple[str, ...]) -> list[Requirement]:
    all_of_them = [Requirement(text) for text in _installed(name).requires or []]
    return [
        item
        for item in all_of_them
        if item.marker is None or any(item.marker.evaluate({"extra": extra}) for extra in (*extras, ""))
    ]


def _installed(name: str) -> importlib.metadata.Distribution:
    try:
        return importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        raise ClusterError(f"{name} is not installed here: run `make setup`") from None


def dependency_layer(cache: Path, place: str) -> oci.Layer:
    """The layer of everything but the project itself; made again only when a version changes."""
    needed = distributions()
    versions = [f"{name}=={item.version}" for name, item in needed.items()]
    key = hashlib.sha256(repr((_RECIPE, place, versions)).encode()).hexdigest()[:16]
    target = cache / f"site-{key}.tar"
    if not target.exists():
        print(f"making the layer of {len(versions)} Python packages", flush=True)
        with tempfile.TemporaryDirectory(dir=cache) as scratch:
            site = Path(scratch)
            for item in needed.values():
                _copy(item, site)
            compile_for_good(site)
            oci.pack(target, {place: site})
    return oci.layer(target)


def _copy(item: importlib.metadata.Distribution, site: Path) -> None:
    for file in item.files or []:
        # A path that leaves the site folder is a script of this environment.
        if ".." in file.parts or _SKIPPED_FOLDERS & set(file.parts[:-1]):
            continue
        source, target = Path(str(file.locate())), site / file
        if source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)


def compile_for_good(site: Path) -> None:
    """Compile to bytecode that is valid whatever the files' times: the images have none."""
    compileall.compile_dir(
        site, quiet=2, workers=2, stripdir=str(site), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH
    )
