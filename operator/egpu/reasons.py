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


def closed(nodes: str) -> str:
    """Room only where nothing may be placed without a pod that tolerates it."""
    return f"only cordoned or tainted nodes have room: {nodes}; untaint one, or use a WaitForFirstConsumer class"


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


def agent_stopped() -> str:
    """An agent's last word."""
    return "the agent has stopped; slices that run are kept, new ones wait for an agent"


def agent_down(node: str) -> str:
    """Nobody listens where a node's agent said it does."""
    return f"the agent of node {node} is not running; the pod is tried again (kubectl -n elasticgpu-system get pods)"


def agent_not_ready(node: str) -> str:
    """A node's agent that is not registered with kubelet."""
    return f"the agent of node {node} is not registered with kubelet yet; the pod is tried again"


def class_in_use(users: str) -> str:
    """A class deleted while used."""
    return f"in use by {users}; the class is deleted when they are"


def slice_no_room(node: str) -> str:
    """A slice whose cards have no room for it."""
    return f"the cards it names have no room for it on node {node} (kubectl get egpun {node} -o yaml)"


# Reasons of an ElasticGPUNode's condition Ready, the agent's.
NODE_READY: Final = "Ready"
DRIVER_MISSING: Final = "DriverMissing"
DRIVER_FAILED: Final = "DriverFailed"
NOT_REGISTERED: Final = "PluginNotRegistered"
RUNTIME_WITHOUT_CDI: Final = "RuntimeWithoutCDI"
LIBRARY_MISSING: Final = "LibraryMissing"
AGENT_STOPPED: Final = "AgentStopped"

# Reasons of a slice's condition Ready, the agent's.
SLICE_USABLE: Final = "Usable"
SLICE_ATTACHED: Final = "Attached"
SLICE_CARD_UNHEALTHY: Final = "CardUnhealthy"
SLICE_CARD_MISSING: Final = "CardMissing"
SLICE_RELEASING: Final = "Releasing"


def not_registered(resources: str) -> str:
    """The agent's plug-ins are not connected to kubelet."""
    return f"kubelet does not list {resources}: it is down, or does not answer under its device-plugins folder"


def runtime_without_cdi(runtime: str) -> str:
    """A runtime that would drop the devices without a word."""
    return (
        f"the container runtime {runtime} does not inject CDI devices: use containerd 2.0 or later, or set "
        "enable_cdi = true (1.7.2 or later) in its CRI plug-in's configuration"
    )


def card_gone(uuid: str) -> str:
    """A card that slices still name and the driver does not list."""
    return f"card {uuid} is no longer on the node; put it back, or delete its slices"


def card_lost(uuid: str) -> str:
    """A card that does not answer."""
    return f"card {uuid} does not answer the driver (lost); reset it or reboot the node"


def start_unknown_ids(ids: str) -> str:
    """PreStartContainer for ids kubelet's checkpoint does not have."""
    return f"kubelet's checkpoint names no container for the tickets {ids}; delete the pod and create it again"


def start_ambiguous(ids: str) -> str:
    """PreStartContainer for ids that several pods hold."""
    return f"kubelet's checkpoint names several pods for the tickets {ids}; the start is tried again"


def start_foreign_answer(container: str) -> str:
    """An allocation whose answer holds no nonce."""
    return f"kubelet has no elasticgpu.io/slice device for container {container}; delete the pod and create it again"


def start_no_slice(container: str, node: str, pod_uid: str) -> str:
    """No slice has this container as its consumer."""
    return (
        f"no ElasticGPU on node {node} has container {container} of this pod (UID {pod_uid}) as its consumer: was the "
        "pod scheduled by egpu-scheduler, with an annotation egpuc.elasticgpu.io/<container>?"
    )


def start_unreachable(container: str, error: str) -> str:
    """A first start while the API server cannot be asked."""
    return (
        f"the slice of container {container} is not known on this node yet and the API server cannot be asked: {error}"
    )


def start_releasing(slice_name: str) -> str:
    """A start for a slice being taken back."""
    return f"ElasticGPU {slice_name} is being released from this pod; no container of it starts any more"


def start_mismatch(container: str, slice_name: str) -> str:
    """The PodResources API contradicts kubelet's checkpoint."""
    return f"kubelet gives the tickets of ElasticGPU {slice_name} to another container than {container}; tried again"


def attached(pod: str) -> str:
    """A slice in use."""
    return f"in use by pod {pod}"


def waiting_for(count: int, first: str) -> str:
    """A release that waits for processes."""
    more = f" and {count - 1} more" if count > 1 else ""
    return f"its pod has ended; waiting for process {first}{more} to be gone from the node"


def waiting_for_driver(pids: str) -> str:
    """A release that waits for memory of processes that are gone."""
    return f"its pod has ended; waiting for the driver to free the memory of process {pids}"


def releasing(pod: str) -> str:
    """A slice asked back from a pod that has ended."""
    return f"pod {pod} has ended; waiting for the node's agent to see nothing left of it"


def released(pod: str) -> str:
    """A slice of whose pod nothing is left."""
    return f"nothing is left of pod {pod}; the slice is free for its claim's next pod"


def usable() -> str:
    """A slice nobody uses now."""
    return "its cards are healthy; no pod uses it"


def start_not_prepared(slice_name: str, why: str) -> str:
    """A start whose limits or spec cannot be written."""
    return f"the agent cannot prepare ElasticGPU {slice_name}: {why}"


def card_not_in_toolkit(uuids: str) -> str:
    """Cards that the container toolkit's CDI specs do not list."""
    return f"no CDI spec of kind nvidia.com/gpu lists the cards {uuids}; write it anew (nvidia-ctk cdi generate)"
