"""When certificates are made, renewed and handed over."""

import base64
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from egpu_operator import certs, pki
from egpu_operator.certs import Plan, Stored
from egpu_operator.keeper import trust_patch
from egpu_operator.settings import CertificateSettings

NOW = datetime(2026, 1, 1, tzinfo=UTC)
DNS = certs.dns_names("elasticgpu-system")
SETTINGS = CertificateSettings()
DAY = timedelta(days=1)


def plan(stored: Stored, now: datetime = NOW) -> Plan:
    return certs.decide(now, stored, dns=DNS, settings=SETTINGS)


def carry_out(stored: Stored, now: datetime = NOW) -> Stored:
    return certs.carry_out(plan(stored, now), stored, now=now, dns=DNS, settings=SETTINGS)


@pytest.fixture(scope="module")
def fresh() -> Stored:
    return carry_out(Stored())


def test_nothing_stored_makes_everything() -> None:
    assert plan(Stored()) == Plan(make_authority=True, issue_server=True, issue_client=True)


def test_what_was_made_is_good(fresh: Stored) -> None:
    assert plan(fresh).empty
    assert fresh.authority
    assert fresh.server
    assert fresh.client
    assert fresh.server.signed_by(fresh.authority)
    assert set(DNS) <= fresh.server.dns_names()
    assert "egpu-operator.elasticgpu-system.svc" in DNS


@pytest.mark.parametrize(
    ("pair", "name", "purpose"),
    [
        ("server", "egpu-operator", ExtendedKeyUsageOID.SERVER_AUTH),
        ("client", "egpu-scheduler", ExtendedKeyUsageOID.CLIENT_AUTH),
    ],
)
def test_names_and_purposes(fresh: Stored, pair: str, name: str, purpose: x509.ObjectIdentifier) -> None:
    cert = getattr(fresh, pair).x509
    assert [part.value for part in cert.subject.get_attributes_for_oid(NameOID.COMMON_NAME)] == [name]
    assert list(cert.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value) == [purpose]


CASES: dict[str, tuple[timedelta, Plan]] = {
    "the next day": (DAY, Plan()),
    "just before renewal": (timedelta(days=365 - 121), Plan()),
    "leaves end soon": (timedelta(days=365 - 119), Plan(issue_server=True, issue_client=True)),
    "leaves have ended": (timedelta(days=400), Plan(issue_server=True, issue_client=True)),
    "authority ends soon": (
        timedelta(days=3650 - 364),
        Plan(make_successor=True, issue_server=True, issue_client=True),
    ),
    "authority has ended": (timedelta(days=3651), Plan(make_authority=True, issue_server=True, issue_client=True)),
}


@pytest.mark.parametrize(("later", "expected"), CASES.values(), ids=CASES)
def test_in_time(fresh: Stored, later: timedelta, expected: Plan) -> None:
    assert plan(fresh, NOW + later) == expected


@pytest.mark.parametrize("part", ["authority", "server", "client"])
def test_a_missing_part_is_made(fresh: Stored, part: str) -> None:
    lacking = replace(fresh, **{part: None})
    assert not plan(lacking).empty
    assert plan(carry_out(lacking)).empty


def test_another_namespace_wants_another_serving_certificate(fresh: Stored) -> None:
    there = certs.decide(NOW, fresh, dns=certs.dns_names("elsewhere"), settings=SETTINGS)
    assert there == Plan(issue_server=True)


def test_a_foreign_serving_certificate_is_replaced(fresh: Stored) -> None:
    other = pki.new_authority(now=NOW, life=DAY)
    foreign = pki.new_leaf(other, common_name="egpu-operator", dns=DNS, now=NOW, life=DAY)
    assert plan(replace(fresh, server=foreign)) == Plan(issue_server=True)


def test_authorities_overlap(fresh: Stored) -> None:
    """Through a whole rotation, what served or called yesterday is trusted by what is handed out today."""
    start = NOW + timedelta(days=3650 - 364)
    announced = carry_out(fresh, start)
    assert announced.authority == fresh.authority
    assert announced.successor
    assert announced.bundle == fresh.bundle + announced.successor.cert
    assert announced.server
    assert announced.server.signed_by(announced.authority), "the new authority signs nothing before it is known"
    assert plan(announced, start + DAY / 2).empty

    promoted = carry_out(announced, start + DAY)
    assert promoted.authority == announced.successor
    assert promoted.retired == fresh.authority
    assert promoted.server
    assert promoted.server.signed_by(announced.successor)
    assert fresh.authority
    assert fresh.authority.cert in promoted.bundle
    assert plan(promoted, start + 2 * DAY).empty

    ended = carry_out(carry_out(promoted, start + 250 * DAY), NOW + timedelta(days=3651))
    assert ended.retired is None
    assert ended.authority == promoted.authority


@pytest.mark.parametrize("days", [0.02, 1, 30, 400])
def test_a_short_life_is_no_endless_renewal(days: float) -> None:
    settings = CertificateSettings(leaf=days)
    stored = certs.carry_out(
        certs.decide(NOW, Stored(), dns=DNS, settings=settings), Stored(), now=NOW, dns=DNS, settings=settings
    )
    assert certs.decide(NOW, stored, dns=DNS, settings=settings).empty


def test_secret_round_trip(fresh: Stored) -> None:
    full = carry_out(fresh, NOW + timedelta(days=3650 - 364))
    assert certs.parse(certs.secret_of(full)) == full
    assert certs.parse(None) == Stored()


@pytest.mark.parametrize("damage", [b"", b"not PEM", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"])
def test_a_damaged_secret_is_made_anew(fresh: Stored, damage: bytes) -> None:
    secret = certs.secret_of(fresh)
    secret["data"]["tls.crt"] = base64.b64encode(damage).decode()
    assert certs.parse(secret) == replace(fresh, server=None)
    assert plan(certs.parse(secret)) == Plan(issue_server=True)


def test_a_key_of_another_certificate_is_refused(fresh: Stored) -> None:
    secret = certs.secret_of(fresh)
    secret["data"]["ca.key"] = secret["data"]["tls.key"]
    assert certs.parse(secret).authority is None


def test_the_schedulers_secret(fresh: Stored) -> None:
    data = certs.client_secret_of(fresh)["data"]
    assert sorted(data) == ["ca.crt", "tls.crt", "tls.key"]
    assert base64.b64decode(data["ca.crt"]) == fresh.bundle
    longer = carry_out(fresh, NOW + timedelta(days=3650 - 364))
    assert certs.mark(certs.client_secret_of(longer)["data"]) != certs.mark(data), "it is to read the longer bundle"


def test_trust_is_written_only_where_it_differs() -> None:
    webhooks = [{"name": "a", "clientConfig": {"caBundle": "old"}}, {"name": "b", "clientConfig": {"caBundle": "new"}}]
    assert trust_patch({"webhooks": webhooks}, "new") == [
        {"op": "test", "path": "/webhooks/0/name", "value": "a"},
        {"op": "add", "path": "/webhooks/0/clientConfig/caBundle", "value": "new"},
    ]
    assert trust_patch({"webhooks": webhooks[1:]}, "new") == []
    assert trust_patch({}, "new") == []
