"""The custom resource definitions as text: explained throughout, the same in both versions, in step with the types."""

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from egpu import names
from egpu.resources import CLAIMS, CLASSES, NODE_CARDS, SLICES
from egpu.types import BindingMode, CardShare, ClaimSpec, ClaimStatus, GPUClass, Isolation, Reclaim, SliceSpec, Wire
from egpu_testing.stack import ROOT

Object = dict[str, Any]
CRDS: dict[str, Object] = {
    body["spec"]["names"]["kind"]: body
    for body in (yaml.safe_load(path.read_text()) for path in sorted((ROOT / "crds").glob("*.yaml")))
}


def schema(kind: str) -> Object:
    found: Object = CRDS[kind]["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return found


def fields(part: Object, path: str = "") -> Iterator[tuple[str, Object]]:
    for name, field in part.get("properties", {}).items():
        yield f"{path}.{name}", field
        yield from fields(field, f"{path}.{name}")
    for below in ("items", "additionalProperties"):
        if isinstance(part.get(below), dict):
            yield from fields(part[below], f"{path}[]")


@pytest.mark.parametrize("resource", [CLASSES, CLAIMS, SLICES, NODE_CARDS], ids=lambda r: r.kind)
def test_names_are_those_the_programs_use(resource: Any) -> None:
    spec = CRDS[resource.kind]["spec"]
    assert (spec["group"], spec["names"]["plural"]) == (resource.group, resource.plural)
    assert (spec["scope"] == "Namespaced") is resource.namespaced
    assert [v["name"] for v in spec["versions"] if v["storage"]] == [names.VERSION]


@pytest.mark.parametrize("kind", CRDS)
def test_every_field_is_explained(kind: str) -> None:
    plain = (".apiVersion", ".kind", ".metadata")
    assert [path for path, field in fields(schema(kind)) if path not in plain and not field.get("description")] == []


@pytest.mark.parametrize("kind", CRDS)
def test_lists_and_maps_are_bounded(kind: str) -> None:
    """CEL's cost and etcd's limit both depend on it."""
    unbounded = [
        path
        for path, field in fields(schema(kind))
        if (field.get("type") == "array" and "maxItems" not in field)
        or ("additionalProperties" in field and "maxProperties" not in field)
        or (field.get("type") == "string" and not {"maxLength", "enum", "format"} & field.keys())
    ]
    assert [path for path in unbounded if path not in (".apiVersion", ".kind")] == []


@pytest.mark.parametrize("kind", CRDS)
def test_the_old_version_is_the_same_but_deprecated(kind: str) -> None:
    new, *old = CRDS[kind]["spec"]["versions"]
    for version in old:
        assert version["deprecated"] is True
        assert {key: version.get(key) for key in new if key not in ("name", "storage")} == {
            key: new[key] for key in new if key not in ("name", "storage")
        }


@pytest.mark.parametrize(
    ("field", "words"),
    [("reclaimPolicy", Reclaim), ("egpuBindingMode", BindingMode), ("isolation", Isolation)],
    ids=str,
)
def test_words_are_those_of_the_types(field: str, words: Any) -> None:
    assert set(schema("EGPUClass")["properties"][field]["enum"]) == {str(word) for word in words}


SHAPES: dict[str, tuple[Object, type[Wire]]] = {
    "class": (schema("EGPUClass"), GPUClass),
    "claim spec": (schema("ElasticGPUClaim")["properties"]["spec"], ClaimSpec),
    "claim status": (schema("ElasticGPUClaim")["properties"]["status"], ClaimStatus),
    "slice spec": (schema("ElasticGPU")["properties"]["spec"], SliceSpec),
    "card share": (schema("ElasticGPU")["properties"]["spec"]["properties"]["cards"]["items"], CardShare),
}


@pytest.mark.parametrize(("part", "model"), SHAPES.values(), ids=SHAPES)
def test_fields_are_those_of_the_types(part: Object, model: type[Wire]) -> None:
    stored = set(part["properties"]) - {"apiVersion", "kind", "metadata"}
    read = {
        "egpuBindingMode" if name == "binding_mode" else str(field.alias) for name, field in model.model_fields.items()
    }
    assert stored == read - {"metadata"}
