"""The operator's own certificates: made by whoever comes first, renewed in time, known everywhere without a restart.

One Secret holds the authority and the serving pair, another what kube-scheduler needs to call the extender. A new
authority is made known (``spread``) before anything is signed by it, and the old one stays trusted until it ends, so no
call ever fails::

    authority ──renew──► authority + successor ──spread──► successor signs, old one trusted ──old one ends──► successor

kube-scheduler reads its files once; :func:`mark` is what its Deployment's pod template is marked with, to restart it.
"""

import base64
import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from egpu import names
from egpu.kube import Object
from egpu_operator import pki
from egpu_operator.pki import Pair
from egpu_operator.settings import CertificateSettings

log = logging.getLogger(__name__)

SECRET: Final = "egpu-operator-tls"  # noqa: S105 - a Secret's name
CLIENT_SECRET: Final = "egpu-scheduler-client"  # noqa: S105 - a Secret's name
CLIENT_NAME: Final = names.SCHEDULER
MARK: Final = f"{names.GROUP}/client-certificate"
_PARTS: Final = {"authority": "ca", "successor": "next", "retired": "old", "server": "tls", "client": "client"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """All pairs; None where there is none or it is unusable.

    Attributes:
        authority: signs.
        successor: is being made known and will sign.
        retired: signed once; trusted until it ends.
        server: serves admission and extender.
        client: kube-scheduler's.
    """

    authority: Pair | None = None
    successor: Pair | None = None
    retired: Pair | None = None
    server: Pair | None = None
    client: Pair | None = None

    @property
    def bundle(self) -> bytes:
        """The authorities to trust."""
        found = (self.authority, self.successor, self.retired)
        return b"".join(pair.cert for pair in found if pair)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to do now, in this order."""

    make_authority: bool = False
    promote: bool = False
    make_successor: bool = False
    drop_retired: bool = False
    issue_server: bool = False
    issue_client: bool = False

    @property
    def empty(self) -> bool:
        """Whether all is well."""
        return self == Plan()


def dns_names(namespace: str) -> tuple[str, ...]:
    """The names the operator's Service is called by."""
    service = f"{names.OPERATOR}.{namespace}"
    return (f"{service}.svc", f"{service}.svc.cluster.local", service, names.OPERATOR, "localhost")


def decide(now: datetime, stored: Stored, *, dns: Sequence[str], settings: CertificateSettings) -> Plan:
    """What is missing, ends soon, or was signed by an authority that does not sign any more."""
    authority = stored.authority
    make_authority = authority is None or authority.until <= now
    promote = not make_authority and _known(stored.successor, now, settings)
    signer = stored.successor if promote else None if make_authority else authority
    soon = signer is not None and signer.until - now < timedelta(days=settings.authority_renew)
    waiting = stored.successor is not None and not promote
    return Plan(
        make_authority=make_authority,
        promote=promote,
        make_successor=not make_authority and soon and not waiting,
        drop_retired=stored.retired is not None and stored.retired.until <= now and not promote,
        issue_server=_due(stored.server, signer, now, settings, dns),
        issue_client=_due(stored.client, signer, now, settings, ()),
    )


def _known(successor: Pair | None, now: datetime, settings: CertificateSettings) -> bool:
    born = successor.since + pki.BACKDATE if successor else None
    return born is not None and now >= born + timedelta(days=settings.spread)


def _due(
    leaf: Pair | None, signer: Pair | None, now: datetime, settings: CertificateSettings, dns: Sequence[str]
) -> bool:
    """A leaf is due a third of its life before its end at the latest, so that a short life is no endless renewal."""
    if leaf is None or signer is None or not leaf.signed_by(signer) or not set(dns) <= leaf.dns_names():
        return True
    renew = min(timedelta(days=settings.leaf_renew), (leaf.until - leaf.since) / 3)
    return leaf.until - now < renew


def carry_out(
    plan: Plan, stored: Stored, *, now: datetime, dns: Sequence[str], settings: CertificateSettings
) -> Stored:
    """The pairs after the plan; this alone makes keys."""
    if plan.empty:
        return stored
    life, leaf = timedelta(days=settings.authority), timedelta(days=settings.leaf)
    if plan.make_authority:
        stored = replace(stored, authority=pki.new_authority(now=now, life=life), successor=None, retired=None)
    if plan.promote:
        stored = replace(stored, authority=stored.successor, successor=None, retired=stored.authority)
    if plan.make_successor:
        stored = replace(stored, successor=pki.new_authority(now=now, life=life))
    if plan.drop_retired:
        stored = replace(stored, retired=None)
    signer = stored.authority
    if signer is None:
        raise pki.PairError("there is no authority to sign with")
    if plan.issue_server:
        server = pki.new_leaf(signer, common_name=names.OPERATOR, dns=dns, now=now, life=leaf)
        stored = replace(stored, server=server)
    if plan.issue_client:
        stored = replace(stored, client=pki.new_leaf(signer, common_name=CLIENT_NAME, now=now, life=leaf))
    return stored


def parse(secret: Object | None) -> Stored:
    """The pairs of the operator's Secret; a pair that cannot be used counts as missing."""
    data = dict((secret or {}).get("data") or {})
    return Stored(**{field: _pair(data, stem) for field, stem in _PARTS.items()})


def _pair(data: Mapping[str, str], stem: str) -> Pair | None:
    try:
        pair = Pair(cert=base64.b64decode(data[f"{stem}.crt"]), key=base64.b64decode(data[f"{stem}.key"]))
        pki.check(pair)
    except KeyError:
        return None
    except (pki.PairError, ValueError) as error:
        log.warning("certificate %s.crt of Secret %s is unusable and will be made anew: %s", stem, SECRET, error)
        return None
    return pair


def secret_of(stored: Stored) -> dict[str, Any]:
    """The operator's Secret."""
    data: dict[str, bytes] = {"bundle.crt": stored.bundle}
    for field, stem in _PARTS.items():
        pair: Pair | None = getattr(stored, field)
        if pair:
            data |= {f"{stem}.crt": pair.cert, f"{stem}.key": pair.key}
    return _secret(SECRET, data)


def client_secret_of(stored: Stored) -> dict[str, Any]:
    """kube-scheduler's Secret: its pair and the authorities it is to trust."""
    if stored.client is None:
        raise pki.PairError("there is no client certificate to hand out")
    data = {"ca.crt": stored.bundle, "tls.crt": stored.client.cert, "tls.key": stored.client.key}
    return _secret(CLIENT_SECRET, data)


def mark(data: Mapping[str, str]) -> str:
    """A short name of a Secret's content."""
    return hashlib.sha256("".join(f"{key}={data[key]}\n" for key in sorted(data)).encode()).hexdigest()[:16]


def _secret(name: str, data: Mapping[str, bytes]) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name},
        "type": "Opaque",
        "data": {key: base64.b64encode(value).decode() for key, value in data.items()},
    }


def utc_now() -> datetime:
    """Now, as certificates tell time."""
    return datetime.now(UTC)
