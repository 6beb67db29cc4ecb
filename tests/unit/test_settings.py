"""Settings: from a file, from the environment, and what is said about mistakes."""

from pathlib import Path

import pytest
import yaml

from egpu_operator import settings
from egpu_operator.settings import Settings, SettingsError
from egpu_testing.stack import ROOT


def write(folder: Path, text: str) -> Path:
    file = folder / "operator.yaml"
    file.write_text(text)
    return file


def test_nothing_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "FILE", tmp_path / "none")
    found = settings.load(environment={})
    assert found == Settings(identity=found.identity)
    assert found.identity


def test_a_file_and_the_environment(tmp_path: Path) -> None:
    file = write(tmp_path, "logFormat: json\nleader: {lease: 30}\nnamespace: mine\n")
    found = settings.load(file, {"POD_NAME": "pod-1", "POD_NAMESPACE": "theirs"})
    assert (found.log_format, found.leader.lease, found.namespace, found.identity) == ("json", 30, "mine", "pod-1")


def test_the_file_of_the_manifests(tmp_path: Path) -> None:
    documents = yaml.safe_load_all((ROOT / "manifests/20-operator.yaml").read_text())
    text = next(body for body in documents if body["kind"] == "ConfigMap")["data"]["operator.yaml"]
    spoken_out = "\n".join(line.removeprefix("# ") for line in text.splitlines())
    for shown in (text, spoken_out):
        found = settings.load(write(tmp_path, shown), {})
        assert found == Settings(identity=found.identity), "what the manifest shows as defaults are the defaults"


MISTAKES: dict[str, tuple[str, str]] = {
    "unknown name": ("logformat: json", "logformat is no setting; write one of namespace, identity"),
    "unknown name within": ("leader: {length: 3}", "leader.length is no setting; write one of lease, deadline, retry"),
    "value out of range": ("leader: {lease: 0}", "leader.lease 0: input should be greater than or equal to 1"),
    "unknown word": ("logFormat: xml", "logFormat 'xml': input should be 'text' or 'json'"),
    "deadline past the lease": ("leader: {lease: 5}", "deadline 10.0 must be less than lease 5"),
    "not a number": ("webhookPort: many", "webhookPort 'many'"),
    "a list": ("[1]", "holds no mapping; write lines such as logFormat: json"),
    "not YAML": ("a: [", "cannot be read as YAML"),
}


@pytest.mark.parametrize(("text", "words"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(SettingsError) as error:
        settings.load(write(tmp_path, text), {})
    assert words in str(error.value)


def test_a_file_asked_for_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="there is no settings file"):
        settings.load(tmp_path / "none", {})
