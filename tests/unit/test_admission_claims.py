"""What the class decides about a claim, and the form of an answer."""

import base64
import json
from typing import Any

import pytest

from egpu.types import GPUClass
from egpu_operator.admission import review
from egpu_operator.admission.decide import NOTHING, Observed, Verdict, denied, validate_claim

Object = dict[str, Any]
DEFAULT = {"egpuclass.elasticgpu.io/is-default-class": "true"}


def gpu_class(name: str, annotations: Object | None = None, **fields: Any) -> GPUClass:
    return GPUClass.parse({"metadata": {"name": name, "annotations": annotations or {}}, **fields})


CLASSES = Observed(
    classes={
        "shared": gpu_class("shared", DEFAULT),
        "fixed": gpu_class("fixed"),
        "elastic": gpu_class("elastic", allowResize=True),
        "other": gpu_class("other", provisioner="gpus.example.com"),
    }
)
NO_DEFAULT = Observed(classes={"fixed": gpu_class("fixed")})


def claim(gpu_class: str | None, **requests: int | str) -> Object:
    spec: Object = {"resources": {"requests": {_key(key): value for key, value in requests.items()}}}
    return {"metadata": {"name": "c"}, "spec": spec | ({"egpuClassName": gpu_class} if gpu_class else {})}


def _key(short: str) -> str:
    prefix, _, name = short.rpartition("__")
    domains = {"": "elasticgpu.io", "x": "gpus.example.com", "p": "gpushare.provisioner.elasticgpu.io"}
    return f"{domains[prefix]}/gpu-{name}"


def request(new: Object, old: Object | None = None) -> Object:
    return {"uid": "1", "operation": "UPDATE" if old else "CREATE", "object": new, "oldObject": old}


CASES: dict[str, tuple[Object, Observed, Verdict | str]] = {
    "class there": (request(claim("shared", core=5)), CLASSES, Verdict()),
    "class filled in": (request(claim(None, core=5)), CLASSES, Verdict()),
    "provisioner's key": (request(claim("shared", p__core=5)), CLASSES, Verdict()),
    "classes unknown": (request(claim("nowhere", core=5)), NOTHING, Verdict()),
    "same amounts": (request(claim("fixed", core=5), claim("fixed", core=5)), CLASSES, Verdict()),
    "resize allowed": (request(claim("elastic", core=6), claim("elastic", core=5)), CLASSES, Verdict()),
    "resize not allowed": (
        request(claim("fixed", core=6), claim("fixed", core=5)),
        CLASSES,
        "EGPUClass fixed does not allow a resize",
    ),
    "another provisioner's key": (
        request(claim("shared", x__core=5)),
        CLASSES,
        "gpus.example.com/gpu-core is not served by gpushare.provisioner.elasticgpu.io; write elasticgpu.io/gpu-core",
    ),
    "key of a class not chosen": (request(claim("other", p__core=5)), CLASSES, "is not served by gpus.example.com"),
}


@pytest.mark.parametrize(("asked", "observed", "expected"), CASES.values(), ids=CASES)
def test_claims(asked: Object, observed: Observed, expected: Verdict | str) -> None:
    verdict = validate_claim(asked, observed)
    if isinstance(expected, str):
        assert not verdict.allowed
        assert expected in verdict.message
    else:
        assert verdict == expected


@pytest.mark.parametrize(
    ("gpu_class", "observed", "words"),
    [("nowhere", CLASSES, "EGPUClass nowhere does not exist"), (None, NO_DEFAULT, 'is-default-class: "true"')],
    ids=["unknown class", "no default class"],
)
def test_a_class_may_come_later(gpu_class: str | None, observed: Observed, words: str) -> None:
    verdict = validate_claim(request(claim(gpu_class, core=5)), observed)
    assert verdict.allowed
    assert words in verdict.warnings[0]


def test_answer_with_a_patch() -> None:
    patch = ({"op": "add", "path": "/spec/schedulerName", "value": "egpu-scheduler"},)
    response = review.answer("7", Verdict(patch=patch, warnings=("w" * 300,)))["response"]
    assert json.loads(base64.b64decode(response.pop("patch"))) == list(patch)
    assert response == {"uid": "7", "allowed": True, "patchType": "JSONPatch", "warnings": ["w" * 256]}


def test_answer_with_a_refusal() -> None:
    answer = review.answer("7", denied("no"))
    assert answer["kind"] == "AdmissionReview"
    assert answer["response"] == {
        "uid": "7",
        "allowed": False,
        "status": {"code": 403, "reason": "Forbidden", "message": "no"},
    }


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b'{"request": []}', b'{"request": {}}', b'{"request": {"uid": 1}}']
)
def test_a_body_that_is_no_review(body: bytes) -> None:
    with pytest.raises(review.ReviewError, match="not an admission review"):
        review.read(body)


def test_an_object_that_is_not_what_its_kind_says_is_refused() -> None:
    answer = review.broken({"uid": "7"}, TypeError("'int' object is not iterable"))
    assert answer["response"]["allowed"] is False
    assert "not iterable" in answer["response"]["status"]["message"]
