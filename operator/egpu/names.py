"""Every name that crosses a process: API group, annotations, resources, finalizers, paths.

Wire names are decided once, here; nothing else in the source spells one out.
"""

from typing import Final

GROUP: Final = "elasticgpu.io"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"

NAMESPACE: Final = "elasticgpu-system"
OPERATOR: Final = "egpu-operator"
SCHEDULER: Final = "egpu-scheduler"
AGENT: Final = "egpu-agent"
LEASE: Final = "egpu-operator"
DEFAULT_PROVISIONER: Final = "gpushare.provisioner.elasticgpu.io"

# Keys of a claim's requests and of a container's limits; the same keys under a class's provisioner mean the same.
KEY_CORE: Final = "gpu-core"
KEY_MEMORY: Final = "gpu-memory"
KEY_MEMORY_PERCENT: Final = "gpu-memory-percent"
KEY_TFLOPS: Final = "gpu-tflops"
KEY_COUNT: Final = "gpu-count"
REQUEST_KEYS: Final = (KEY_CORE, KEY_MEMORY, KEY_MEMORY_PERCENT, KEY_TFLOPS, KEY_COUNT)

# Tickets: what kubelet and kube-scheduler count. One per container with a claim.
TICKET: Final = f"{GROUP}/slice"
INIT_TICKET: Final = f"{GROUP}/init-slice"
TICKETS_PER_NODE: Final = 1024

ANNOTATION_DEFAULT_CLASS: Final = "egpuclass.elasticgpu.io/is-default-class"
ANNOTATION_CLAIM_PREFIX: Final = "egpuc.elasticgpu.io/"
ANNOTATION_SLICE_PREFIX: Final = "status.elasticgpu.io/"
ANNOTATION_RETRY: Final = f"{GROUP}/retry-at"
LABEL_MANAGED: Final = f"{GROUP}/managed"
LABEL_CLAIM_UID: Final = f"{GROUP}/claim-uid"
LABEL_NODE: Final = f"{GROUP}/node"

FINALIZER_AGENT: Final = f"{GROUP}/agent"
FINALIZER_BOOKING: Final = f"{GROUP}/booking"
FINALIZER_CLAIM: Final = f"{GROUP}/claim-protection"
FINALIZER_CLASS: Final = f"{GROUP}/class-protection"

TAINT_OUT_OF_SERVICE: Final = "node.kubernetes.io/out-of-service"

# Field managers: one writer, one name.
MANAGER_OPERATOR: Final = OPERATOR
MANAGER_AGENT: Final = AGENT

CDI_KIND: Final = f"{GROUP}/slice"
CDI_VERSION: Final = "0.6.0"
TOOLKIT_CDI_KIND: Final = "nvidia.com/gpu"

# Where things stand inside a container.
CONTAINER_LIMITS: Final = "/etc/elasticgpu/limits"
CONTAINER_USAGE: Final = "/etc/elasticgpu/usage"
CONTAINER_LIBRARY: Final = "/usr/lib/elasticgpu/libvgpu.so"
CONTAINER_PRELOAD: Final = "/etc/ld.so.preload"


def slice_name(claim_uid: str) -> str:
    """The one name a claim's slice can have, so that creating it twice is creating it once."""
    return f"egpu-{claim_uid}"
