"""Providers and isolations of other distributions: found, and harmless when broken."""

from collections.abc import Iterable
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from egpu_agent import discovery
from egpu_agent.isolation.none import NoIsolation
from egpu_agent.settings import Settings


class Mine(NoIsolation):
    """An isolation from elsewhere."""

    @property
    def name(self) -> str:
        return "mine"


def make(_: Settings) -> Mine:
    return Mine()


def crash(_: Settings) -> Mine:
    raise RuntimeError("no such hardware")


def steal(_: Settings) -> NoIsolation:
    """Calls itself by a name that is ours."""
    return NoIsolation()


def _points(group: str) -> Iterable[EntryPoint]:
    here = __name__
    return [
        EntryPoint("crashing", f"{here}:crash", group),
        EntryPoint("missing", "no_such_module:thing", group),
        EntryPoint("not-one", "builtins:str", group),
        EntryPoint("mine", f"{here}:make", group),
        EntryPoint("steal", f"{here}:steal", group),
    ]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(node="n", state_dir=tmp_path, cdi_dir=tmp_path / "cdi")


def test_a_broken_one_stops_no_other(
    settings: Settings, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(
        __import__("sys").modules, __name__, __import__("types").SimpleNamespace(make=make, crash=crash, steal=steal)
    )
    found = discovery.isolations(settings, find=_points)
    assert set(found) == {"libvgpu", "none", "mine"}
    assert "no such hardware" in caplog.text
    assert "no_such_module" in caplog.text


def test_providers_begin_with_our_own(settings: Settings) -> None:
    assert [provider.name for provider in discovery.providers(settings, find=lambda _: ())] == ["nvidia"]
