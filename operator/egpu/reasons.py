"""Reasons and messages: constants for programs, sentences for people. Nothing else in the source spells one out."""

from typing import Final

# Why a node does not fit, at most ten so that kube-scheduler's summary stays readable. The order is that of nearness:
# what room alone can change first.
NODE_MEMORY: Final = "not enough GPU memory on a card"
NODE_CORE: Final = "not enough GPU compute on a card"
NODE_COUNT: Final = "not enough cards with room"
NODE_TOGETHER: Final = "not enough room for all claims of the pod together"
NODE_UNHEALTHY: Final = "GPU unhealthy"
NODE_NOT_READY: Final = "elastic GPU agent not ready"
NODE_TFLOPS: Final = "TFLOPS of the GPU model unknown"
NODE_SELECTOR: Final = "no GPU the claim's selector allows"
NODE_NO_CARDS: Final = "no elastic GPU"
NODE_ELSEWHERE: Final = "claim is bound to another node"
NODE_REASONS: Final = (
    NODE_MEMORY,
    NODE_CORE,
    NODE_COUNT,
    NODE_TOGETHER,
    NODE_UNHEALTHY,
    NODE_NOT_READY,
    NODE_TFLOPS,
    NODE_SELECTOR,
    NODE_NO_CARDS,
    NODE_ELSEWHERE,
)

# Condition types.
BOUND: Final = "Bound"
READY: Final = "Ready"
BOOKED: Final = "Booked"
DELETABLE: Final = "Deletable"

# Reasons of a claim's condition Bound.
CLAIM_BOUND: Final = "Bound"
CLAIM_WAITS_FOR_POD: Final = "WaitForFirstConsumer"
CLAIM_NO_CLASS: Final = "NoClass"
CLAIM_CLASS_MISSING: Final = "ClassNotFound"
CLAIM_BAD_REQUEST: Final = "BadRequest"
CLAIM_NO_ROOM: Final = "NoRoom"
CLAIM_SLICE_MISSING: Final = "SliceNotFound"
CLAIM_SLICE_TAKEN: Final = "SliceTaken"
CLAIM_SLICE_SMALL: Final = "SliceTooSmall"
CLAIM_SLICE_NOT_READY: Final = "SliceNotAvailable"
CLAIM_SLICE_GOING: Final = "SliceBeingDeleted"
CLAIM_LOST: Final = "SliceLost"

# Reasons of a claim's and a class's deletion.
IN_USE: Final = "InUse"

# Reasons of a slice's condition Booked.
SLICE_BOOKED: Final = "Booked"
SLICE_NO_ROOM: Final = "NoRoom"

# Reasons of events that stand for no condition.
EVENT_RELEASED: Final = "Released"
EVENT_RELEASING: Final = "Releasing"


def no_class(key: str) -> str:
    """A claim that names no class where none is the default."""
    return (
        f"claim {key} names no class and no EGPUClass is the default: set spec.egpuClassName, or annotate a class with "
        'egpuclass.elasticgpu.io/is-default-class: "true"'
    )


def class_missing(name: str) -> str:
    """A class that does not exist."""
    return f"EGPUClass {name} does not exist; create it, or claim again with a class there is (kubectl get egpuclass)"


def claim_missing(key: str) -> str:
    """A claim a pod names and that does not exist."""
    return f"claim {key} does not exist; create it in the pod's namespace"


def claim_deleting(key: str) -> str:
    """A claim a pod names and that is being deleted."""
    return f"claim {key} is being deleted; create another and let the pod name that"


def claim_unbound(key: str, why: str) -> str:
    """A claim a pod names and that cannot be bound now."""
    return f"claim {key} is not bound: {why}"


def in_use(key: str, pod: str) -> str:
    """A claim or slice another pod has."""
    return f"claim {key} is in use by pod {pod}"


def being_released(key: str, pod: str) -> str:
    """A claim whose last pod has ended but is not known to be gone from the node."""
    return f"claim {key} is still in use by pod {pod}, which has ended and is being cleaned up on its node"


def deletion_waits(pod: str) -> str:
    """A claim deleted while a pod uses it."""
    return f"in use by pod {pod}; the claim is deleted when that pod has ended"


def no_room(figures: str) -> str:
    """No node has room; with the figures of the nearest ones."""
    return f"no node has room: {figures}" if figures else "no node has elastic GPUs; is the agent running?"


def waits_for_pod(figures: str) -> str:
    """A claim that is bound with its first pod; ``figures`` where no node would fit it now."""
    text = "waits for the first pod that uses it"
    return f"{text}; no node would fit it now: {figures}" if figures else text


def bound(name: str, node: str) -> str:
    """A bound claim."""
    return f"bound to ElasticGPU {name} on node {node}"


def lost(name: str) -> str:
    """A claim whose slice vanished."""
    return f"ElasticGPU {name} is gone; delete the claim and create another"


def slice_missing(name: str) -> str:
    """A slice named by a claim that does not exist."""
    return f"ElasticGPU {name} does not exist; create it, or create a claim without spec.egpuName"


def slice_taken(name: str, owner: str) -> str:
    """A slice named by a claim that is another's."""
    return f"ElasticGPU {name} belongs to claim {owner}; name another in spec.egpuName, or none"


def slice_small(name: str, wanted: str) -> str:
    """A slice named by a claim that is less than the claim asks for."""
    return f"ElasticGPU {name} has less than the claim asks for ({wanted}); ask for less, or name another slice"


def slice_not_available(name: str) -> str:
    """A slice named by a claim that is not booked (yet)."""
    return f"ElasticGPU {name} is not booked on its node yet; see its condition Booked"


def slice_going(name: str) -> str:
    """A claim's slice being deleted."""
    return f"ElasticGPU {name} is being deleted"


def class_in_use(users: str) -> str:
    """A class deleted while used."""
    return f"in use by {users}; the class is deleted when they are"


def slice_no_room(node: str) -> str:
    """A slice whose cards have no room for it."""
    return f"the cards it names have no room for it on node {node} (kubectl get egpun {node} -o yaml)"
