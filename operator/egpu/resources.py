"""The kinds the programs read and write, with the paths they are served under."""

from dataclasses import dataclass

from egpu import names


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """One kind as the API server serves it."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool

    @property
    def api_version(self) -> str:
        """``group/version``, or the version alone for the core group."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, *, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        """URL path of the collection, of one object, or of one object's subresource."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        scope = f"/namespaces/{namespace}" if self.namespaced and namespace else ""
        tail = "".join(f"/{part}" for part in (name, subresource) if part)
        return f"{root}{scope}/{self.plural}{tail}"


def _own(plural: str, kind: str, *, namespaced: bool) -> Resource:
    return Resource(group=names.GROUP, version=names.VERSION, plural=plural, kind=kind, namespaced=namespaced)


CLASSES = _own("egpuclasses", "EGPUClass", namespaced=False)
CLAIMS = _own("elasticgpuclaims", "ElasticGPUClaim", namespaced=True)
SLICES = _own("elasticgpus", "ElasticGPU", namespaced=False)
NODE_CARDS = _own("elasticgpunodes", "ElasticGPUNode", namespaced=False)

PODS = Resource(group="", version="v1", plural="pods", kind="Pod", namespaced=True)
NODES = Resource(group="", version="v1", plural="nodes", kind="Node", namespaced=False)
SECRETS = Resource(group="", version="v1", plural="secrets", kind="Secret", namespaced=True)
CONFIGMAPS = Resource(group="", version="v1", plural="configmaps", kind="ConfigMap", namespaced=True)
EVENTS = Resource(group="events.k8s.io", version="v1", plural="events", kind="Event", namespaced=True)
LEASES = Resource(group="coordination.k8s.io", version="v1", plural="leases", kind="Lease", namespaced=True)
MUTATING_WEBHOOKS = Resource(
    group="admissionregistration.k8s.io",
    version="v1",
    plural="mutatingwebhookconfigurations",
    kind="MutatingWebhookConfiguration",
    namespaced=False,
)
VALIDATING_WEBHOOKS = Resource(
    group="admissionregistration.k8s.io",
    version="v1",
    plural="validatingwebhookconfigurations",
    kind="ValidatingWebhookConfiguration",
    namespaced=False,
)
