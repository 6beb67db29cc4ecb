"""TFLOPS of a card by its model's name: the table of this package, before it an admin's own."""

import logging
import re
from decimal import Decimal
from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

logger = logging.getLogger(__name__)

BUILT_IN = Path(__file__).with_name("models.yaml")


class Model(BaseModel):
    """One line: a pattern over whole model names and the figures by precision."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    match: str
    tflops: dict[str, Decimal]

    @field_validator("match")
    @classmethod
    def _compiles(cls, value: str) -> str:
        try:
            re.compile(value)
        except re.error as error:
            raise ValueError(f"not a regular expression: {error}") from error
        return value


class Table(BaseModel):
    """A file of models."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    models: tuple[Model, ...] = ()


def load(extra: Path) -> tuple[Model, ...]:
    """The admin's models, then the built-in ones; a broken file of the admin's is said and passed over."""
    return (*_admins(extra), *_parse(BUILT_IN.read_text()).models)


def tflops(models: tuple[Model, ...], name: str) -> dict[str, Decimal]:
    """The figures of a model; empty for an unknown one."""
    bare = re.sub(r"^NVIDIA\s+", "", name, flags=re.IGNORECASE)
    for model in models:
        if re.fullmatch(model.match, bare, flags=re.IGNORECASE):
            return dict(model.tflops)
    return {}


def _admins(path: Path) -> tuple[Model, ...]:
    try:
        return _parse(path.read_text()).models
    except FileNotFoundError:
        return ()
    except (OSError, yaml.YAMLError, ValidationError) as error:
        logger.error("the model table %s is passed over: %s. Write it like %s", path, error, BUILT_IN.name)  # noqa: TRY400
        return ()


def _parse(text: str) -> Table:
    return Table.model_validate(yaml.safe_load(text) or {})
