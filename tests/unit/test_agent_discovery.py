"""Providers and isolations of other distributions: found, and harmless when broken."""

from collections.abc import Iterable
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from egpu_agent import discovery
from egpu_agent.settings import Settings

MODULE = """
from egpu_agent.isolation.none import NoIsolation

class Mine(NoIsolation):
    @property
    def name(self):
        return "mine"

def make(settings):
    return Mine()

def crash(settings):
    raise RuntimeError("no such hardware")

def steal(settings):
    return NoIsolation()
"""


def _points(group: str) -> Iterable[EntryPoint]:
    values = ("elsewhere:crash", "no_such_module:thing", "builtins:str", "elsewhere:make", "elsewhere:steal")
    return [EntryPoint(f"point{number}", value, group) for number, value in enumerate(values)]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(node="n", state_dir=tmp_path, cdi_dir=tmp_path / "cdi")


def test_a_broken_one_stops_no_other(
    settings: Settings, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    found = discovery.isolations(settings, find=_points)
    assert set(found) == {"libvgpu", "none", "mine"}
    assert "no such hardware" in caplog.text
    assert "no_such_module" in caplog.text


def test_providers_begin_with_our_own(settings: Settings) -> None:
    assert [provider.name for provider in discovery.providers(settings, find=lambda _: ())] == ["nvidia"]
