"""A real Kubernetes on one machine, in namespaces of its own: no container engine, no registry, nothing left behind.

`LocalCluster` brings one up and down; `from_kubeconfig` wraps a cluster that exists already. `python -m localcluster`
does the same for people.
"""

from localcluster.cluster import LocalCluster
from localcluster.errors import ClusterError, NoNodeAccess
from localcluster.existing import ExistingCluster, from_kubeconfig
from localcluster.node import Node

__all__ = ["ClusterError", "ExistingCluster", "LocalCluster", "NoNodeAccess", "Node", "from_kubeconfig"]
