"""The programs of a control plane and of a node, in the order in which they start. Pure."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from localcluster import constants

if TYPE_CHECKING:
    from localcluster.spec import ClusterSpec, NodeSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A process to keep, or with `once` a command that is to end with 0."""

    name: str
    argv: tuple[str, ...]
    after: tuple[str, ...] = ()
    """What must answer before it starts (`https://…`, `tcp://host:port`, `unix:///path`), or what must have ended."""
    once: bool = False


def control_plane(spec: ClusterSpec) -> tuple[Program, ...]:
    """etcd, kube-apiserver, kube-controller-manager; with nodes also these, kube-scheduler, kube-proxy and CoreDNS."""
    ready = (f"{spec.api_url}/readyz",)
    core = (_etcd(spec), _apiserver(spec), _controller_manager(spec, ready))
    if not spec.nodes:
        return core
    etc = spec.folder / "etc"
    scheduler = (
        "kube-scheduler",
        f"--kubeconfig={etc}/kube-scheduler.kubeconfig",
        "--leader-elect=false",
        "--secure-port=0",
    )
    return (
        *core[:2],
        *(_node(spec, node) for node in spec.nodes),
        core[2],
        Program(name="kube-scheduler", argv=scheduler, after=ready),
        Program(name="kube-proxy", argv=("kube-proxy", f"--config={etc}/kube-proxy.json"), after=ready),
        Program(name="coredns", argv=("coredns", f"-conf={etc}/Corefile"), after=ready),
    )


def _etcd(spec: ClusterSpec) -> Program:
    client = f"http://127.0.0.1:{spec.etcd_port}"
    argv = (
        "etcd",
        "--data-dir=/run/etcd",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        "--listen-peer-urls=http://127.0.0.1:0",
        "--unsafe-no-fsync",
        "--log-level=warn",
    )
    return Program(name="etcd", argv=argv)


def _apiserver(spec: ClusterSpec) -> Program:
    pki = spec.folder / "pki"
    whole = (
        "--bind-address=0.0.0.0",
        f"--advertise-address={constants.CONTROL_PLANE_IP}",
        f"--kubelet-client-certificate={pki}/admin.crt",
        f"--kubelet-client-key={pki}/admin.key",
        f"--kubelet-certificate-authority={pki}/ca.crt",
        "--kubelet-preferred-address-types=InternalIP",
    )
    # Alone, it has no address that an Endpoints object may carry.
    alone = ("--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", "--endpoint-reconciler-type=none")
    argv = (
        "kube-apiserver",
        f"--etcd-servers=http://127.0.0.1:{spec.etcd_port}",
        f"--secure-port={spec.api_port}",
        *(whole if spec.nodes else alone),
        f"--client-ca-file={pki}/ca.crt",
        f"--tls-cert-file={pki}/apiserver.crt",
        f"--tls-private-key-file={pki}/apiserver.key",
        f"--service-account-key-file={pki}/service-account.pub",
        f"--service-account-signing-key-file={pki}/service-account.key",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--requestheader-client-ca-file={pki}/front-proxy-ca.crt",
        "--requestheader-allowed-names=front-proxy",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        f"--proxy-client-cert-file={pki}/front-proxy.crt",
        f"--proxy-client-key-file={pki}/front-proxy.key",
        f"--service-cluster-ip-range={constants.SERVICE_NET}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
        *spec.apiserver_args,
    )
    return Program(name="kube-apiserver", argv=argv)


def _controller_manager(spec: ClusterSpec, ready: tuple[str, ...]) -> Program:
    argv = [
        "kube-controller-manager",
        f"--kubeconfig={spec.folder}/etc/kube-controller-manager.kubeconfig",
        f"--service-account-private-key-file={spec.folder}/pki/service-account.key",
        f"--root-ca-file={spec.folder}/pki/ca.crt",
        "--use-service-account-credentials",
        # At the default rate the making of its controllers' service accounts alone takes four seconds.
        "--kube-api-qps=500",
        "--kube-api-burst=1000",
        "--leader-elect=false",
        "--secure-port=0",
    ]
    if not spec.nodes:
        # Tests make Node objects that no kubelet stands behind; they are not to be tainted as dead.
        argv.append("--controllers=*,-node-lifecycle-controller,-taint-eviction-controller")
    return Program(name="kube-controller-manager", argv=tuple(argv), after=ready)


def _node(spec: ClusterSpec, node: NodeSpec) -> Program:
    return Program(
        name=node.name, argv=(sys.executable, "-m", "localcluster.supervise", "node", str(spec.folder), node.name)
    )


def node_programs(spec: ClusterSpec, node: NodeSpec) -> tuple[Program, ...]:
    """The simulated driver when the cluster has one, containerd, the imports of images, kubelet."""
    folder = spec.node_folder(node.name)
    socket = (f"unix://{constants.CONTAINERD_SOCKET}",)
    imports = tuple(
        Program(name=f"import-{image.stem}", argv=import_command(str(image)), after=socket, once=True)
        for image in spec.images
    )
    kubelet = (
        "kubelet",
        f"--config={folder}/etc/kubelet.json",
        f"--kubeconfig={folder}/etc/kubelet.kubeconfig",
        f"--hostname-override={node.name}",
        f"--node-ip={node.ip}",
        "--cert-dir=/run/kubelet-pki",
        "-v=2",
    )
    driver = (f"unix://{constants.GPUSIM_DIR}/ctl.sock",) if spec.gpus else ()
    first_import = tuple(program.name for program in imports[:1])
    return (
        *_gpusim(spec, node),
        Program(name="containerd", argv=("containerd", "--config", f"{folder}/etc/containerd.toml")),
        *imports,
        Program(name="kubelet", argv=kubelet, after=(*driver, *socket, *first_import, f"{spec.api_url}/readyz")),
    )


def import_command(image: str) -> tuple[str, ...]:
    """The command that imports an OCI archive on a node."""
    return (
        "ctr",
        "-a",
        constants.CONTAINERD_SOCKET,
        "-n",
        constants.CONTAINERD_NAMESPACE,
        "images",
        "import",
        "--local",
        image,
    )


def _gpusim(spec: ClusterSpec, node: NodeSpec) -> tuple[Program, ...]:
    if spec.gpus is None:
        return ()
    configuration = ("--config", str(spec.gpus), "--node", node.name)
    install = (sys.executable, "-m", "gpusim", "install", "--root", "/", *configuration)
    serve = (sys.executable, "-m", "gpusim", "serve", *configuration, "--dir", constants.GPUSIM_DIR)
    return (
        Program(name="gpusim-install", argv=install, once=True),
        Program(name="gpusim", argv=serve, after=("gpusim-install",)),
    )
