"""The cluster's certificates: one authority, one for the front proxy, a certificate for each part."""

from __future__ import annotations

import datetime as dt
import ipaddress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from localcluster import constants

if TYPE_CHECKING:
    from pathlib import Path

    from localcluster.spec import ClusterSpec

_LIFETIME = dt.timedelta(days=30)


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who a certificate speaks for: RBAC takes the common name as user and the organisation as group."""

    file: str
    name: str
    group: str | None = None
    hosts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Authority:
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def identities(spec: ClusterSpec) -> tuple[Identity, ...]:
    """The certificates that a cluster needs."""
    service = tuple(f"kubernetes.default{suffix}" for suffix in ("", ".svc", f".svc.{constants.CLUSTER_DOMAIN}"))
    api = ("127.0.0.1", constants.CONTROL_PLANE_IP, constants.API_SERVICE_IP, "localhost", "kubernetes", *service)
    return (
        Identity(file="apiserver", name="kube-apiserver", hosts=api),
        Identity(file="admin", name="admin", group="system:masters"),
        Identity(file="kube-controller-manager", name="system:kube-controller-manager"),
        Identity(file="kube-scheduler", name="system:kube-scheduler"),
        Identity(file="kube-proxy", name="system:kube-proxy"),
        Identity(file="coredns", name="coredns", group="system:masters"),
        *(
            Identity(file=node.name, name=f"system:node:{node.name}", group="system:nodes", hosts=(node.name, node.ip))
            for node in spec.nodes
        ),
    )


def write(spec: ClusterSpec) -> None:
    """Write keys and certificates into the cluster's folder `pki`."""
    folder = spec.folder / "pki"
    folder.mkdir(exist_ok=True)
    authority = _authority("cluster")
    front = _authority("front-proxy")
    _write_certificate(folder / "ca.crt", authority.certificate)
    _write_certificate(folder / "front-proxy-ca.crt", front.certificate)
    for identity in identities(spec):
        _issue(folder, identity, authority)
    _issue(folder, Identity(file="front-proxy", name="front-proxy"), front)
    _write_signing_key(folder)


def _authority(name: str) -> _Authority:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"localcluster-{name}")])
    builder = _builder(subject, subject, key).add_extension(
        x509.BasicConstraints(ca=True, path_length=0), critical=True
    )
    return _Authority(certificate=builder.sign(key, hashes.SHA256()), key=key)


def _issue(folder: Path, identity: Identity, authority: _Authority) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    attributes = [x509.NameAttribute(NameOID.COMMON_NAME, identity.name)]
    if identity.group:
        attributes.insert(0, x509.NameAttribute(NameOID.ORGANIZATION_NAME, identity.group))
    usages = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
    names = x509.SubjectAlternativeName([_general_name(host) for host in identity.hosts or (identity.file,)])
    builder = _builder(x509.Name(attributes), authority.certificate.subject, key)
    builder = builder.add_extension(usages, critical=False).add_extension(names, critical=False)
    _write_certificate(folder / f"{identity.file}.crt", builder.sign(authority.key, hashes.SHA256()))
    _write_key(folder / f"{identity.file}.key", key)


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(minutes=5))
        .not_valid_after(now + _LIFETIME)
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _write_certificate(path: Path, certificate: x509.Certificate) -> None:
    path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    path.touch(mode=0o600)
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        )
    )


def _write_signing_key(folder: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    _write_key(folder / "service-account.key", key)
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    (folder / "service-account.pub").write_bytes(public)
