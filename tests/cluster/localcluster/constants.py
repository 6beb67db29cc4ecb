"""Versions, names and addresses of the cluster.

The addresses may be the same in every cluster of a machine: each has a network namespace of its own.
"""

KUBERNETES_VERSION = "1.36.3"
CONTAINERD_SERIES = "2.3"

BRIDGE = "cni0"
BRIDGE_MAC = "02:00:0a:58:00:01"
POD_NET = "10.88.0.0/16"
"""Nodes have 10.88.0.1, 10.88.0.2 and so on; pods of the first node 10.88.1.x, of the second 10.88.2.x and so on."""
SERVICE_NET = "10.96.0.0/24"
API_SERVICE_IP = "10.96.0.1"
CONTROL_PLANE_IP = "10.88.0.1"
API_PORT = 6443
ETCD_PORT = 2379
CLUSTER_DOMAIN = "cluster.local"
MAX_NODES = 9

CONTAINERD_SOCKET = "/run/containerd/containerd.sock"
CONTAINERD_NAMESPACE = "k8s.io"
PAUSE_IMAGE = "docker.io/elasticgpu/pause:dev"
PRODUCT_IMAGE = "docker.io/elasticgpu/elasticgpu:dev"
DEMO_IMAGE = "docker.io/elasticgpu/demo:dev"
SCHEDULER_IMAGE = f"docker.io/elasticgpu/kube-scheduler:v{KUBERNETES_VERSION}"

GPUSIM_DIR = "/dev/gpusim"
CDI_DIR = "/run/cdi"

CONTROL_SOCKET = "control.sock"
"""In the cluster's folder and in each node's: where its process 1 takes orders."""
