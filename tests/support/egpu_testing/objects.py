"""Builders of the objects that tests create."""

from collections.abc import Mapping, Sequence
from typing import Any

Object = dict[str, Any]

DEMO_IMAGE = "elasticgpu/demo:dev"
PROBE = "/opt/demo/probe"
TEST_LABEL = "egpu-test=pod"


def gpu_class(name: str, **fields: Any) -> Object:
    """An EGPUClass."""
    return {
        "apiVersion": "elasticgpu.io/v1alpha1",
        "kind": "EGPUClass",
        "metadata": {"name": name},
        "provisioner": "gpushare.provisioner.elasticgpu.io",
        **fields,
    }


def claim(
    name: str, *, gpu_class: str = "shared", core: int | str | None = None, memory: int | str | None = None, **spec: Any
) -> Object:
    """An ElasticGPUClaim of so many percent and so much memory of a card."""
    wanted = {"elasticgpu.io/gpu-core": core, "elasticgpu.io/gpu-memory": memory}
    return {
        "apiVersion": "elasticgpu.io/v1alpha1",
        "kind": "ElasticGPUClaim",
        "metadata": {"name": name},
        "spec": {
            "egpuClassName": gpu_class,
            "resources": {"requests": {key: value for key, value in wanted.items() if value is not None}},
            **spec,
        },
    }


def container(name: str = "main", *, command: Sequence[str] = (PROBE,), env: Mapping[str, str] | None = None) -> Object:
    """A container of the demo image."""
    return {
        "name": name,
        "image": DEMO_IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "command": list(command),
        "env": [{"name": key, "value": value} for key, value in (env or {}).items()],
    }


def pod(
    name: str,
    claims: Mapping[str, str] | None = None,
    *,
    containers: Sequence[Object] | None = None,
    annotations: Mapping[str, str] | None = None,
    **spec: Any,
) -> Object:
    """A pod; ``claims`` maps containers to claims."""
    used = {f"egpuc.elasticgpu.io/{where}": what for where, what in (claims or {}).items()}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "labels": dict([TEST_LABEL.split("=")]),
            "annotations": {**used, **(annotations or {})},
        },
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "containers": list(containers) if containers else [container()],
            **spec,
        },
    }


def deployment(template: Object) -> Object:
    """A Deployment of one such pod, under the pod's name."""
    name = template["metadata"]["name"]
    labels = {**template["metadata"]["labels"], "app": name}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": 1,
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": labels, "annotations": template["metadata"]["annotations"]},
                "spec": template["spec"],
            },
        },
    }
