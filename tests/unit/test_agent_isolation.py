"""Isolation by libvgpu as files: the library under its digest, limits and usage of a slice."""

from pathlib import Path

import pytest

from egpu.types import CardShare
from egpu_agent.isolation.base import Grant, IsolationError
from egpu_agent.isolation.libvgpu import Libvgpu
from egpu_vgpu import limits, usage

pytestmark = pytest.mark.native

UUID = "GPU-aaaaaaaa-0000-4000-8000-000000000001"
GRANT = Grant(slice_uid="uid-1", cards=(CardShare(uuid=UUID, core=25, memory=4 << 30),))


def _isolation(root: Path, content: bytes = b"first") -> Libvgpu:
    source = root / "source.so"
    source.write_bytes(content)
    return Libvgpu(slices=root / "slices", lib=root / "lib", library=lambda: source)


def _library(root: Path, edits: dict[str, list[dict[str, str]]]) -> Path:
    (path,) = (m["hostPath"] for m in edits["mounts"] if m["containerPath"].endswith("libvgpu.so"))
    assert path.startswith(str(root / "lib"))
    return Path(path)


def test_an_old_library_stays_as_long_as_a_spec_names_it(tmp_path: Path) -> None:
    old = _library(tmp_path, _isolation(tmp_path).prepare(GRANT))
    second = _isolation(tmp_path, b"second")
    second.install(used=[str(old)])
    new = _library(tmp_path, second.prepare(GRANT))
    assert (old.read_bytes(), new.read_bytes()) == (b"first", b"second")
    second.install(used=[])
    assert not old.exists()
    assert new.exists()
    assert (tmp_path / "lib" / "ld.so.preload").read_text() == "/usr/lib/elasticgpu/libvgpu.so\n"
    assert new.stat().st_mode & 0o777 == 0o755


def test_installing_again_changes_nothing(tmp_path: Path) -> None:
    isolation = _isolation(tmp_path)
    isolation.install(used=[])
    before = {path: path.stat().st_ino for path in (tmp_path / "lib").iterdir()}
    isolation.install(used=[])
    assert {path: path.stat().st_ino for path in (tmp_path / "lib").iterdir()} == before


def test_limits_and_usage_of_a_slice(tmp_path: Path) -> None:
    isolation = _isolation(tmp_path)
    isolation.prepare(GRANT)
    folder = tmp_path / "slices" / "uid-1"
    page = limits.read(folder / "limits")
    assert (page.slice_uid, [(card.uuid, card.memory, card.core) for card in page.cards]) == (
        "uid-1",
        [(UUID, 4 << 30, 25)],
    )
    assert usage.read(folder / "usage") == ()
    assert (folder / "limits").stat().st_mode & 0o777 == 0o644
    assert (folder / "usage").stat().st_mode & 0o777 == 0o666
    assert isolation.present() == {"uid-1"}
    isolation.remove("uid-1")
    isolation.remove("uid-1")
    assert isolation.present() == set()


def test_no_compute_set_aside_is_none_limited(tmp_path: Path) -> None:
    _isolation(tmp_path).prepare(Grant(slice_uid="u", cards=(CardShare(uuid=UUID, core=0, memory=1 << 30),)))
    assert limits.read(tmp_path / "slices" / "u" / "limits").cards[0].core == 100


def test_an_update_is_in_place_and_only_where_there_is_a_page(tmp_path: Path) -> None:
    isolation = _isolation(tmp_path)
    isolation.prepare(GRANT)
    path = tmp_path / "slices" / "uid-1" / "limits"
    inode = path.stat().st_ino
    more = Grant(slice_uid="uid-1", cards=(CardShare(uuid=UUID, core=50, memory=8 << 30),))
    isolation.update(more)
    assert limits.read(path).cards[0].memory == 8 << 30
    assert path.stat().st_ino == inode
    isolation.update(Grant(slice_uid="uid-2", cards=more.cards))
    assert isolation.present() == {"uid-1"}


def test_without_the_library_nothing_starts(tmp_path: Path) -> None:
    isolation = Libvgpu(slices=tmp_path / "slices", lib=tmp_path / "lib", library=lambda: tmp_path / "missing.so")
    with pytest.raises(IsolationError, match="not in this agent's image"):
        isolation.prepare(GRANT)


def test_a_bad_card_is_an_error_that_names_the_slice(tmp_path: Path) -> None:
    with pytest.raises(IsolationError, match="uid-1"):
        _isolation(tmp_path).prepare(Grant(slice_uid="uid-1", cards=(CardShare(uuid="nonsense", core=1, memory=1),)))
