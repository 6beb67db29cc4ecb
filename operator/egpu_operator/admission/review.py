"""The AdmissionReview format (admission.k8s.io/v1), in and out."""

import base64
import json
from collections.abc import Mapping
from typing import Any, Final

from egpu_operator.admission import messages
from egpu_operator.admission.decide import Verdict, denied

API_VERSION: Final = "admission.k8s.io/v1"
WARNING_LENGTH: Final = 256
"""Longer warnings may be cut short by the API server (AdmissionResponse.warnings)."""


class ReviewError(ValueError):
    """A body that is no AdmissionReview; the message says in what."""


def read(body: bytes) -> dict[str, Any]:
    """The request of a review.

    Raises:
        ReviewError: no JSON, or no request with a UID and an object in it.
    """
    try:
        review = json.loads(body)
    except ValueError as error:
        raise ReviewError(messages.unreadable(f"no JSON ({error})")) from error
    request = review.get("request") if isinstance(review, dict) else None
    if not isinstance(request, dict) or not isinstance(request.get("uid"), str):
        raise ReviewError(messages.unreadable(f"no request with a uid; write kind AdmissionReview of {API_VERSION}"))
    return request


def answer(uid: str, verdict: Verdict) -> dict[str, Any]:
    """The review that carries a verdict."""
    response: dict[str, Any] = {"uid": uid, "allowed": verdict.allowed}
    if not verdict.allowed:
        response["status"] = {"code": 403, "reason": "Forbidden", "message": verdict.message}
    if verdict.warnings:
        response["warnings"] = [text[:WARNING_LENGTH] for text in verdict.warnings]
    if verdict.allowed and verdict.patch:
        patch = json.dumps([dict(operation) for operation in verdict.patch]).encode()
        response |= {"patchType": "JSONPatch", "patch": base64.b64encode(patch).decode()}
    return {"apiVersion": API_VERSION, "kind": "AdmissionReview", "response": response}


def broken(request: Mapping[str, Any], why: object) -> dict[str, Any]:
    """The refusal of a request whose object is not shaped as its kind says."""
    return answer(str(request.get("uid") or ""), denied(messages.unreadable(repr(why))))
