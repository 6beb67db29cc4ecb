"""The configuration files of the cluster's programs. Pure, but for `write`."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

from localcluster import constants

if TYPE_CHECKING:
    from pathlib import Path

    from localcluster.spec import ClusterSpec, NodeSpec

Document = dict[str, Any]


def kubeconfig(*, server: str, pki: Path, user: str) -> Document:
    """A kubeconfig that carries its certificates, so that it works wherever it is copied."""

    def data(name: str) -> str:
        return base64.b64encode((pki / name).read_bytes()).decode()

    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "localcluster",
        "clusters": [
            {"name": "localcluster", "cluster": {"server": server, "certificate-authority-data": data("ca.crt")}}
        ],
        "users": [
            {
                "name": user,
                "user": {"client-certificate-data": data(f"{user}.crt"), "client-key-data": data(f"{user}.key")},
            }
        ],
        "contexts": [{"name": "localcluster", "context": {"cluster": "localcluster", "user": user}}],
    }


def kubelet(spec: ClusterSpec, node: NodeSpec) -> Document:
    """Kubelet's configuration: its ports on the node's own address alone, nothing evicted, nothing collected."""
    pki = spec.folder / "pki"
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": node.ip,
        "healthzBindAddress": node.ip,
        "containerRuntimeEndpoint": f"unix://{constants.CONTAINERD_SOCKET}",
        "cgroupDriver": "cgroupfs",
        # Kubelet 1.35 and later refuse cgroup v1 otherwise.
        "failCgroupV1": False,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(pki / "ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(pki / f"{node.name}.crt"),
        "tlsPrivateKeyFile": str(pki / f"{node.name}.key"),
        "clusterDNS": [constants.CONTROL_PLANE_IP],
        "clusterDomain": constants.CLUSTER_DOMAIN,
        "resolvConf": "",
        "failSwapOn": False,
        "enforceNodeAllocatable": [],
        "localStorageCapacityIsolation": False,
        "evictionHard": {"memory.available": "1Mi", "nodefs.available": "0%", "imagefs.available": "0%"},
        "imageGCHighThresholdPercent": 100,
        "volumePluginDir": "/var/lib/kubelet/volumeplugins",
        "nodeStatusUpdateFrequency": "5s",
        "syncFrequency": "10s",
        "shutdownGracePeriod": "0s",
    }


def kube_proxy(spec: ClusterSpec) -> Document:
    """kube-proxy's configuration. One serves every node, for they share a network namespace."""
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "hostnameOverride": spec.nodes[0].name,
        "clientConnection": {"kubeconfig": str(spec.folder / "etc/kube-proxy.kubeconfig")},
        "clusterCIDR": constants.POD_NET,
        "detectLocalMode": "ClusterCIDR",
        # Zero leaves the machine-wide conntrack settings alone.
        "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
        # Else replies of a pod on the same bridge need the kernel module br_netfilter, loaded for the whole machine.
        "nftables": {"syncPeriod": "30s", "minSyncPeriod": "100ms", "masqueradeAll": True},
        "healthzBindAddress": "127.0.0.1:10256",
        "metricsBindAddress": "127.0.0.1:10249",
    }


def cni(node: NodeSpec) -> Document:
    """The bridge network; each node gives its pods addresses of a range of its own."""
    return {
        "cniVersion": "1.0.0",
        "name": "localcluster",
        "plugins": [
            {
                "type": "bridge",
                "bridge": constants.BRIDGE,
                "isGateway": True,
                "ipMasq": False,
                "hairpinMode": True,
                "ipam": {
                    "type": "host-local",
                    "dataDir": "/run/cni-ipam",
                    "ranges": [
                        [
                            {
                                "subnet": constants.POD_NET,
                                "rangeStart": node.pod_ips[0],
                                "rangeEnd": node.pod_ips[1],
                                "gateway": constants.CONTROL_PLANE_IP,
                            }
                        ]
                    ],
                    "routes": [{"dst": "0.0.0.0/0"}],
                },
            }
        ],
    }


def containerd(spec: ClusterSpec, node: NodeSpec) -> str:
    """containerd's configuration: its store in the node's folder, since overlayfs wants a real filesystem below it."""
    folder = spec.node_folder(node.name)
    return f"""version = 3
root = "{folder}/containerd"
state = "/run/containerd"
[grpc]
  address = "{constants.CONTAINERD_SOCKET}"
[plugins.'io.containerd.internal.v1.opt']
  path = "{folder}/opt"
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = "{constants.PAUSE_IMAGE}"
[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = true
  enable_cdi = true
  cdi_spec_dirs = ["/etc/cdi", "/var/run/cdi"]
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins.'io.containerd.cri.v1.runtime'.cni]
  bin_dirs = ["{spec.binaries}"]
  conf_dir = "{folder}/etc/cni"
"""


def corefile(spec: ClusterSpec) -> str:
    """CoreDNS's configuration: the cluster's names, and no others, for there is no way out."""
    return f""".:53 {{
    errors
    cache 5
    kubernetes {constants.CLUSTER_DOMAIN} in-addr.arpa {{
        kubeconfig {spec.folder}/etc/coredns.kubeconfig
        ttl 5
    }}
}}
"""


def write(spec: ClusterSpec) -> None:
    """Write every configuration file, and `kubeconfig` for the machine."""
    etc, pki = spec.folder / "etc", spec.folder / "pki"
    etc.mkdir(exist_ok=True)
    for user in ("admin", "kube-controller-manager", "kube-scheduler", "kube-proxy", "coredns"):
        _write_json(etc / f"{user}.kubeconfig", kubeconfig(server=spec.api_url, pki=pki, user=user))
    host = kubeconfig(server=f"https://127.0.0.1:{spec.host_port}", pki=pki, user="admin")
    _write_json(spec.folder / "kubeconfig", host)
    if spec.nodes:
        _write_json(etc / "kube-proxy.json", kube_proxy(spec))
        (etc / "Corefile").write_text(corefile(spec))
    for node in spec.nodes:
        _write_node(spec, node)


def _write_node(spec: ClusterSpec, node: NodeSpec) -> None:
    etc = spec.node_folder(node.name) / "etc"
    (etc / "cni").mkdir(parents=True, exist_ok=True)
    _write_json(etc / "kubelet.kubeconfig", kubeconfig(server=spec.api_url, pki=spec.folder / "pki", user=node.name))
    _write_json(etc / "kubelet.json", kubelet(spec, node))
    _write_json(etc / "cni/10-bridge.conflist", cni(node))
    (etc / "containerd.toml").write_text(containerd(spec, node))


def _write_json(path: Path, document: Document) -> None:
    path.touch(mode=0o600)
    path.write_text(json.dumps(document, indent=1))
