"""Every sentence admission says; each tells what to write instead."""

from collections.abc import Iterable

from egpu import names

ANNOTATION = f"{names.ANNOTATION_CLAIM_PREFIX}<container>: <claim>"

DENIED_NODE_NAME = (
    "spec.nodeName is set, so no scheduler would book the claim's slice; leave nodeName out and choose the node by "
    "nodeSelector or by node affinity"
)
DENIED_LABEL = (
    f"label {names.LABEL_MANAGED} is Elastic GPU's own; leave it out, it is set on every pod that names a claim by the "
    f"annotation {ANNOTATION}"
)
DENIED_LATE = (
    f"annotations {names.ANNOTATION_CLAIM_PREFIX}… and {names.ANNOTATION_SLICE_PREFIX}… and label "
    f"{names.LABEL_MANAGED} cannot change once a pod exists; delete the pod and create it with the claim you want"
)
WARN_NO_DEFAULT_CLASS = (
    "egpuClassName is left out and no EGPUClass is the default; the claim waits until one has the annotation "
    f'{names.ANNOTATION_DEFAULT_CLASS}: "true"'
)


def name_it(container: str) -> str:
    """How a container comes to a claim."""
    return f"name a claim in the annotation {names.ANNOTATION_CLAIM_PREFIX}{container}: <claim>"


def unknown_container(written: str, choices: Iterable[str]) -> str:
    """An annotation for a container the pod does not have."""
    return (
        f"annotation {names.ANNOTATION_CLAIM_PREFIX}{written} names no container of this pod; "
        f"write {names.ANNOTATION_CLAIM_PREFIX} and one of: {', '.join(choices)}"
    )


def several_for_one(choices: Iterable[str], container: str) -> str:
    """Several annotations in a pod with a single container."""
    return (
        f"annotations {', '.join(choices)} would give container {container} several claims; keep one of them, or claim "
        f"several cards at once by elasticgpu.io/gpu-count"
    )


def foreign_namespace(key: str, value: str) -> str:
    """A claim written with a namespace."""
    return (
        f"annotation {key}: {value}: a claim is used in its own namespace; write "
        f"{value.rpartition('/')[2] or 'its name'} and create the pod in the claim's namespace"
    )


def bad_claim_name(key: str, value: str) -> str:
    """A claim name no object can have."""
    return (
        f"annotation {key}: {value!r} is not the name of an ElasticGPUClaim; write a name of small letters, digits, "
        "'-' and '.', such as my-claim"
    )


def slice_annotation(key: str) -> str:
    """The operator's annotation, written by a user."""
    return (
        f"annotation {key} is written by Elastic GPU when the pod is bound; leave it out and name a claim by the "
        f"annotation {ANNOTATION}"
    )


def hand_ticket(container: str, key: str) -> str:
    """A ticket without a claim, or of another amount than one."""
    return (
        f"container {container}: resource {key} is not to be asked for by hand; leave it out and {name_it(container)}"
    )


def direct_request(container: str, key: str) -> str:
    """Amounts asked for in the pod itself."""
    return (
        f"container {container}: {key} cannot be asked for in a pod; make an ElasticGPUClaim with {key} under "
        f"spec.resources.requests and {name_it(container)}"
    )


def unknown_resource(container: str, key: str) -> str:
    """A resource of the group that does not exist."""
    return f"container {container}: there is no resource {key}; make an ElasticGPUClaim and {name_it(container)}"


def other_scheduler(scheduler: str) -> str:
    """A scheduler that books no slices."""
    return (
        f"schedulerName {scheduler} books no slices; leave schedulerName out or write {names.SCHEDULER} in a pod that "
        "uses a claim"
    )


def init_claims(claims: Iterable[str]) -> str:
    """Ordinary init containers with different claims."""
    return (
        f"init containers run one after another and share one claim, here are several: {', '.join(claims)}; "
        "name the same claim for all of them (an init container with restartPolicy Always may have its own)"
    )


def incomplete(what: str) -> str:
    """A pod that lost between mutation and validation what it needs."""
    return (
        f"{what}: another admission webhook changed what Elastic GPU wrote; let it leave schedulerName, resources "
        f"{names.TICKET} and {names.INIT_TICKET}, label {names.LABEL_MANAGED} and NVIDIA_VISIBLE_DEVICES alone"
    )


def claim_missing(claim: str, namespace: str) -> str:
    """A claim that may come later."""
    return f"ElasticGPUClaim {claim} does not exist in namespace {namespace}; the pod waits until it is created"


def claim_deleting(claim: str) -> str:
    """A claim on its way out."""
    return f"ElasticGPUClaim {claim} is being deleted; the pod waits for a new claim of that name"


def visible_devices(container: str) -> str:
    """The variable that would have given all cards."""
    return (
        f"container {container}: NVIDIA_VISIBLE_DEVICES is set to void: cards are given by ElasticGPUClaims; "
        f"{name_it(container)}"
    )


def privileged(container: str) -> str:
    """A container that sees every device."""
    return f"container {container} is privileged: it reaches every card of its node, and nothing holds it to its claim"


def class_missing(name: str) -> str:
    """A class that may come later."""
    return f"EGPUClass {name} does not exist; the claim waits until it is created (see kubectl get egpuclass)"


def no_resize(name: str) -> str:
    """Amounts changed where the class forbids it."""
    return (
        f"EGPUClass {name} does not allow a resize (allowResize: false); create another claim with the new amounts, or "
        "a class with allowResize: true"
    )


def unreadable(why: str) -> str:
    """A review that is none."""
    return f"this is not an admission review that Elastic GPU understands: {why}"
