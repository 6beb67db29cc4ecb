"""Builders of objects, short where a test does not care."""

from typing import Any

from egpu import names

GIB = 1024**3
CARD_MEMORY = 16 * GIB


def gpu_class(
    name: str, *, mode: str = "Immediate", reclaim: str = "Delete", default: bool = False, **placement: str
) -> dict[str, Any]:
    return {
        "apiVersion": names.API_VERSION,
        "kind": "EGPUClass",
        "metadata": {
            "name": name,
            "annotations": {names.ANNOTATION_DEFAULT_CLASS: "true"} if default else {},
        },
        "provisioner": names.DEFAULT_PROVISIONER,
        "reclaimPolicy": reclaim,
        "egpuBindingMode": mode,
        "placement": {"node": "binpack", "card": "binpack", **placement},
    }


def claim(
    name: str,
    *,
    gpu_class: str | None = None,
    core: int | None = 25,
    memory: str | None = "4Gi",
    egpu: str | None = None,
    **requests: int | str,
) -> dict[str, Any]:
    amounts: dict[str, int | str] = {f"elasticgpu.io/gpu-{key}": value for key, value in requests.items()}
    if core is not None:
        amounts["elasticgpu.io/gpu-core"] = core
    if memory is not None:
        amounts["elasticgpu.io/gpu-memory"] = memory
    spec: dict[str, Any] = {"resources": {"requests": amounts}}
    if gpu_class:
        spec["egpuClassName"] = gpu_class
    if egpu:
        spec["egpuName"] = egpu
    return {
        "apiVersion": names.API_VERSION,
        "kind": "ElasticGPUClaim",
        "metadata": {"name": name},
        "spec": spec,
    }


def pod(name: str, claims: dict[str, str]) -> dict[str, Any]:
    """A pod as the webhook leaves it, one container a claim."""
    containers = [
        {
            "name": container,
            "image": "example.invalid/none",
            "resources": {"limits": {names.TICKET: "1"}},
        }
        for container in claims
    ]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "labels": {names.LABEL_MANAGED: "true"},
            "annotations": {f"{names.ANNOTATION_CLAIM_PREFIX}{c}": claim for c, claim in claims.items()},
        },
        "spec": {
            "schedulerName": names.SCHEDULER,
            "containers": containers,
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False,
        },
    }


def card(uuid: str, *, memory: int = CARD_MEMORY, model: str = "Test 16", health: str = "Healthy") -> dict[str, Any]:
    return {"uuid": uuid, "model": model, "memory": str(memory), "health": health, "tflops": {"fp32": "20"}}
