"""Names that stand both in manifests/ and in the source."""

from typing import Any

import yaml

from egpu import names
from egpu_operator import certs, keeper
from egpu_testing.stack import ROOT

Object = dict[str, Any]
OBJECTS: list[Object] = [
    body for path in sorted((ROOT / "manifests").glob("*.yaml")) for body in yaml.safe_load_all(path.read_text())
]


def named(kind: str, name: str) -> Object:
    return next(body for body in OBJECTS if (body["kind"], body["metadata"]["name"]) == (kind, name))


def test_namespace_and_workloads() -> None:
    assert {body["metadata"].get("namespace") for body in OBJECTS} == {None, names.NAMESPACE, "kube-system"}
    assert named("Namespace", names.NAMESPACE)
    for kind, name in (("Deployment", names.OPERATOR), ("Deployment", names.SCHEDULER), ("DaemonSet", names.AGENT)):
        assert named(kind, name)["metadata"]["namespace"] == names.NAMESPACE


def test_webhooks_call_the_operators_service_by_a_certified_name() -> None:
    for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"):
        for webhook in named(kind, keeper.WEBHOOK_CONFIGURATIONS)["webhooks"]:
            service = webhook["clientConfig"]["service"]
            assert f"{service['name']}.{service['namespace']}.svc" in certs.dns_names(names.NAMESPACE)


def test_roles_name_what_the_operator_writes() -> None:
    rules = named("Role", names.OPERATOR)["rules"]
    by_name = {name for rule in rules for name in rule.get("resourceNames", ())}
    assert by_name == {certs.SECRET, certs.CLIENT_SECRET, names.LEASE, names.SCHEDULER}


def test_the_scheduler_mounts_the_operators_secret_and_bears_the_name_admission_writes() -> None:
    volumes = named("Deployment", names.SCHEDULER)["spec"]["template"]["spec"]["volumes"]
    assert certs.CLIENT_SECRET in [volume.get("secret", {}).get("secretName") for volume in volumes]
    settings = yaml.safe_load(named("ConfigMap", names.SCHEDULER)["data"]["scheduler.yaml"])
    assert [profile["schedulerName"] for profile in settings["profiles"]] == [names.SCHEDULER]
    assert certs.CLIENT_NAME == names.SCHEDULER
    assert [row["name"] for row in settings["extenders"][0]["managedResources"]] == [names.TICKET, names.INIT_TICKET]
