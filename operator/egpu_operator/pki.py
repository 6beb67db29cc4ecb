"""Keys and certificates: elliptic curve P-256, made and read; no policy here."""

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

BACKDATE: Final = timedelta(minutes=5)
"""Certificates begin a little earlier, for clocks that are behind."""


class PairError(ValueError):
    """A certificate or key that cannot be used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A certificate with its key, both PEM."""

    cert: bytes
    key: bytes

    @property
    def x509(self) -> x509.Certificate:
        """The certificate."""
        return x509.load_pem_x509_certificate(self.cert)

    @property
    def until(self) -> datetime:
        """End of the certificate's life."""
        return self.x509.not_valid_after_utc

    @property
    def since(self) -> datetime:
        """Beginning of the certificate's life."""
        return self.x509.not_valid_before_utc

    def signed_by(self, authority: "Pair") -> bool:
        """Whether the authority's key made this certificate."""
        try:
            self.x509.verify_directly_issued_by(authority.x509)
        except Exception:  # noqa: BLE001 - whatever is wrong with it, it is not signed by that authority
            return False
        return True

    def dns_names(self) -> frozenset[str]:
        """The DNS names it serves."""
        try:
            extension = self.x509.extensions.get_extension_for_class(x509.SubjectAlternativeName)
        except x509.ExtensionNotFound:
            return frozenset()
        return frozenset(extension.value.get_values_for_type(x509.DNSName))


def check(pair: Pair) -> None:
    """Looks whether certificate and key belong together.

    Raises:
        PairError: they do not, or one of them cannot be read.
    """
    try:
        key = serialization.load_pem_private_key(pair.key, password=None)
        form = (serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
        same = key.public_key().public_bytes(*form) == pair.x509.public_key().public_bytes(*form)
    except (ValueError, TypeError) as error:
        raise PairError(str(error)) from error
    if not same:
        raise PairError("the key is another certificate's")


def new_authority(*, now: datetime, life: timedelta) -> Pair:
    """A self-signed certificate authority; its name carries its birth, so that two can be told apart."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name(f"elasticgpu-ca-{now:%Y%m%d%H%M%S}")
    builder = _builder(name, name, key.public_key(), now, life)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(sign=True), critical=True)
    return _pair(builder.sign(key, hashes.SHA256()), key)


def new_leaf(authority: Pair, *, common_name: str, dns: Sequence[str] = (), now: datetime, life: timedelta) -> Pair:
    """A certificate of the authority: for a server where it has DNS names, else for a client."""
    signer = serialization.load_pem_private_key(authority.key, password=None)
    if not isinstance(signer, ec.EllipticCurvePrivateKey):
        raise PairError("the authority's key is no elliptic curve key")
    key = ec.generate_private_key(ec.SECP256R1())
    life = min(life, authority.until - now)
    purpose = ExtendedKeyUsageOID.SERVER_AUTH if dns else ExtendedKeyUsageOID.CLIENT_AUTH
    issuer = authority.x509
    builder = _builder(_name(common_name), issuer.subject, key.public_key(), now, life)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage(sign=False), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
    identifier = issuer.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    builder = builder.add_extension(
        x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), critical=False
    )
    if dns:
        builder = builder.add_extension(x509.SubjectAlternativeName([_general(name) for name in dns]), critical=False)
    return _pair(builder.sign(signer, hashes.SHA256()), key)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime, life: timedelta
) -> x509.CertificateBuilder:
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
    builder = builder.serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(now - BACKDATE).not_valid_after(now + life)
    return builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)


def _pair(cert: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Pair:
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return Pair(cert=cert.public_bytes(serialization.Encoding.PEM), key=key.private_bytes(*form))


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _usage(*, sign: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=sign,
        crl_sign=sign,
        encipher_only=False,
        decipher_only=False,
    )
