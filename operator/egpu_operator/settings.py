"""The operator's settings: an optional YAML file, and what the pod says about itself in its environment."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.alias_generators import to_camel

from egpu import names

FILE: Final = Path("/etc/elasticgpu/operator.yaml")
_FROM_ENVIRONMENT: Final = {"POD_NAMESPACE": "namespace", "POD_NAME": "identity", "KUBECONFIG": "kubeconfig"}


class SettingsError(ValueError):
    """A setting that cannot be used; the message names it and says what to write."""


class Part(BaseModel):
    """Base of every part of the settings: frozen, camelCase in the file, unknown names refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True)


class LeaderSettings(Part):
    """Seconds of the leadership's Lease.

    Attributes:
        lease: a leader not heard of for so long has lost.
        deadline: a leader that cannot renew for so long stops by itself; less than ``lease``.
        retry: pause between two looks at the Lease.
    """

    lease: int = Field(default=15, ge=1, le=300)
    deadline: float = Field(default=10.0, gt=0)
    retry: float = Field(default=2.0, gt=0)

    @model_validator(mode="after")
    def _stops_before_others_start(self) -> Self:
        if self.deadline >= self.lease:
            raise ValueError(f"deadline {self.deadline} must be less than lease {self.lease}; write two thirds of it")
        return self


class CertificateSettings(Part):
    """Days of the certificates' lives.

    Attributes:
        authority: life of a certificate authority.
        authority_renew: what a CA has left when its successor is made.
        leaf: life of the serving and the client certificate.
        leaf_renew: what a leaf has left when it is made anew.
        spread: time between making a new CA and signing with it, in which everybody comes to know it.
    """

    authority: float = Field(default=3650, gt=0)
    authority_renew: float = Field(default=365, gt=0)
    leaf: float = Field(default=365, gt=0)
    leaf_renew: float = Field(default=120, gt=0)
    spread: float = Field(default=1, ge=0)


class Settings(Part):
    """Everything an admin can set.

    Attributes:
        namespace: the operator's own; its Lease and Secrets stand there.
        identity: who holds the Lease: the pod's name, so that a restarted container goes on at once.
        kubeconfig: file to reach the API server by; None inside a pod.
        address: where the servers listen.
        webhook_port: HTTPS: admission and extender.
        health_port: plain HTTP: healthz, readyz, livez.
        log_format: ``text`` for people, ``json`` for collectors.
        log_level: as Python's logging names them.
    """

    namespace: str = Field(default=names.NAMESPACE, min_length=1, max_length=63)
    identity: str = Field(default="", max_length=253)
    kubeconfig: str | None = None
    address: str = "0.0.0.0"  # noqa: S104 - a pod's own network
    webhook_port: int = Field(default=8443, ge=0, le=65535)
    health_port: int = Field(default=8080, ge=0, le=65535)
    log_format: Literal["text", "json"] = "text"
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    leader: LeaderSettings = LeaderSettings()
    certificates: CertificateSettings = CertificateSettings()


def load(path: Path | None = None, environment: Mapping[str, str] | None = None) -> Settings:
    """The settings of a file (none is no fault unless it was asked for), then of the environment.

    Raises:
        SettingsError: a file that is not there or not YAML, a name that is no setting, a value out of range.
    """
    raw = _read(path)
    variables = os.environ if environment is None else environment
    for variable, name in _FROM_ENVIRONMENT.items():
        if variables.get(variable) and name not in raw:
            raw[name] = variables[variable]
    raw.setdefault("identity", os.uname().nodename)
    try:
        return Settings.model_validate(raw)
    except ValidationError as error:
        raise SettingsError(_explain(error, path or FILE)) from error


def _read(path: Path | None) -> dict[str, Any]:
    file = path or FILE
    try:
        raw = yaml.safe_load(file.read_text())
    except FileNotFoundError as error:
        if path is None:
            return {}
        raise SettingsError(
            f"there is no settings file {file}; leave --config out or name a file that is there"
        ) from error
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise SettingsError(f"settings file {file} cannot be read as YAML: {error}") from error
    if raw is not None and not isinstance(raw, dict):
        raise SettingsError(f"settings file {file} holds no mapping; write lines such as logFormat: json")
    return dict(raw or {})


def _explain(error: ValidationError, file: Path) -> str:
    lines = []
    for fault in error.errors():
        where = ".".join(str(part) for part in fault["loc"])
        if fault["type"] == "extra_forbidden":
            known = ", ".join(_names_at(fault["loc"][:-1]))
            lines.append(f"{where} is no setting; write one of {known}")
        else:
            lines.append(f"{where} {fault['input']!r}: {fault['msg'][0].lower()}{fault['msg'][1:]}")
    return f"settings ({file} and environment): " + "; ".join(lines)


def _names_at(place: tuple[int | str, ...]) -> list[str]:
    parts: dict[str, type[Part]] = {"leader": LeaderSettings, "certificates": CertificateSettings}
    model = parts.get(str(place[0]), Settings) if place else Settings
    return [str(field.alias) for field in model.model_fields.values()]
