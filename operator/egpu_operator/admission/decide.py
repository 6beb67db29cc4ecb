"""The verdict on one admission request, from the request and what was observed for it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from egpu import names
from egpu.request import RequestError, parse_requests
from egpu.types import GPUClass
from egpu_operator.admission import messages, mutate, pods, rules
from egpu_operator.admission.pods import JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What the API server holds about the names in a request; empty where it was not asked or did not answer.

    Attributes:
        missing: claims that do not exist.
        deleting: claims on their way out.
        classes: all classes by name, or None where they could not be read.
    """

    missing: frozenset[str] = frozenset()
    deleting: frozenset[str] = frozenset()
    classes: Mapping[str, GPUClass] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The answer to one request.

    Attributes:
        allowed: whether it may go on.
        message: why not, and what to write instead.
        warnings: shown by kubectl beside its own output.
        patch: JSON patch to apply to the object.
    """

    allowed: bool = True
    message: str = ""
    warnings: tuple[str, ...] = ()
    patch: tuple[Mapping[str, Any], ...] = ()


NOTHING = Observed()


def denied(message: str) -> Verdict:
    """A refusal."""
    return Verdict(allowed=False, message=message)


def mutate_pod(request: JsonObject, observed: Observed = NOTHING) -> Verdict:
    """Completes a new pod, or the new ephemeral containers of one."""
    pod, old = request.get("object") or {}, request.get("oldObject") or {}
    if request.get("subResource") == "ephemeralcontainers":
        return Verdict(patch=mutate.ephemeral(pod, old), warnings=tuple(mutate.warnings(pods.fresh(pod, old), ())))
    if request.get("operation") != "CREATE":
        return Verdict()
    if message := rules.violation(pod):
        return denied(message)
    return Verdict(patch=mutate.pod(pod), warnings=(*_claim_warnings(request, observed), *_pod_warnings(pod)))


def validate_pod(request: JsonObject, observed: Observed = NOTHING) -> Verdict:  # noqa: ARG001 - one signature for all
    """Judges a pod as it would be stored: complete when new, its marks unchanged later."""
    pod, old = request.get("object") or {}, request.get("oldObject") or {}
    if request.get("operation") == "CREATE":
        return _first(rules.violation(pod), *map(messages.incomplete, _new_gaps(pod)))
    if pods.protected(pod) != pods.protected(old):
        return denied(messages.DENIED_LATE)
    if request.get("subResource") == "ephemeralcontainers":
        managed = names.LABEL_MANAGED in pods.labels(pod)
        return _first(*map(messages.incomplete, rules.exposed(pods.fresh(pod, old), managed=managed)))
    return Verdict()


def validate_claim(request: JsonObject, observed: Observed = NOTHING) -> Verdict:
    """What needs the claim's class: whether it is there, serves these keys and allows a resize."""
    classes = observed.classes
    if classes is None:
        return Verdict()
    spec = (request.get("object") or {}).get("spec") or {}
    name = spec.get("egpuClassName") or next((n for n, c in classes.items() if c.is_default), None)
    if name is None:
        return Verdict(warnings=(messages.WARN_NO_DEFAULT_CLASS,))
    if name not in classes:
        return Verdict(warnings=(messages.class_missing(name),))
    return _judge_claim(request, classes[name])


def _judge_claim(request: JsonObject, gpu_class: GPUClass) -> Verdict:
    wanted = _requests(request.get("object"))
    if request.get("operation") == "UPDATE":
        if wanted == _requests(request.get("oldObject")):
            return Verdict()
        if not gpu_class.allow_resize:
            return denied(messages.no_resize(gpu_class.metadata.name))
    try:
        parse_requests(wanted, provisioner=gpu_class.provisioner)
    except RequestError as error:
        return denied(f"spec.resources.requests: {error}")
    return Verdict()


def _requests(claim: JsonObject | None) -> dict[str, int | str]:
    found = ((claim or {}).get("spec") or {}).get("resources") or {}
    return dict(found.get("requests") or {})


def _claim_warnings(request: JsonObject, observed: Observed) -> Sequence[str]:
    namespace = str(request.get("namespace") or "")
    named = sorted(set(pods.claims(request.get("object") or {}).values()))
    gone = [messages.claim_missing(claim, namespace) for claim in named if claim in observed.missing]
    return [*gone, *(messages.claim_deleting(claim) for claim in named if claim in observed.deleting)]


def _pod_warnings(pod: JsonObject) -> Sequence[str]:
    return list(mutate.warnings(pods.boxes(pod), pods.claims(pod)))


def _new_gaps(pod: JsonObject) -> tuple[str, ...]:
    if pods.claims(pod):
        return tuple(rules.gaps(pod))
    return tuple(rules.exposed(pods.boxes(pod), managed=False))


def _first(*found: str | None) -> Verdict:
    message = next((text for text in found if text), None)
    return denied(message) if message else Verdict()
