"""When a certificate is due, and what the next one is."""

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509

from trainyard.certificates.contents import CertificateFiles, Contents, parse
from trainyard.certificates.issuing import BACKDATING, renew
from trainyard.certificates.renewal import Renewal, RenewalReason, decide

HOST = "trainyard-coordinator.trainyard-system.svc"
NOW = datetime(2026, 11, 25, 12, tzinfo=UTC)
DUE, MISSING, NOT_YET_VALID = RenewalReason.DUE, RenewalReason.MISSING, RenewalReason.NOT_YET_VALID


@pytest.fixture(scope="module")
def first() -> Contents:
    """What is issued at NOW."""
    return parse(renew(None, decide(None, HOST, NOW), HOST, NOW))


@dataclass(frozen=True)
class Case:
    name: str
    after: timedelta
    then: Renewal
    host: str = HOST


@pytest.mark.parametrize(
    "case",
    [
        Case("a new certificate", timedelta(0), Renewal()),
        Case("just before two thirds of 90 days", timedelta(days=58, hours=23), Renewal()),
        Case("after two thirds", timedelta(days=59), Renewal(serving=DUE)),
        Case("an expired certificate", timedelta(days=200), Renewal(serving=DUE)),
        Case("before two thirds of ten years", timedelta(days=2432), Renewal(serving=DUE)),
        Case("after two thirds of ten years", timedelta(days=2433), Renewal(DUE, DUE)),
        Case("an expired authority", timedelta(days=4000), Renewal(DUE, DUE)),
        Case("the clock was a bit ahead", -BACKDATING, Renewal()),
        Case("the clock was far ahead", -2 * BACKDATING, Renewal(NOT_YET_VALID, NOT_YET_VALID)),
        Case("another Service", timedelta(0), Renewal(serving=RenewalReason.HOST_CHANGED), host="other.svc"),
    ],
    ids=lambda case: case.name,
)
def test_certificates_are_renewed_after_two_thirds(first: Contents, case: Case) -> None:
    assert decide(first, case.host, NOW + case.after) == case.then


def test_nothing_stored_is_missing() -> None:
    assert decide(None, HOST, NOW) == Renewal(MISSING, MISSING)


def test_foreign_certificates_are_never_due(first: Contents) -> None:
    foreign = parse(replace(first.files, authority_key=b""))
    assert decide(foreign, "other.svc", NOW + timedelta(days=9000)) == Renewal()


def test_serving_renewal_keeps_the_authority(first: Contents) -> None:
    later = NOW + timedelta(days=60)
    second = parse(renew(first, decide(first, HOST, later), HOST, later))
    assert (second.files.authority, second.files.authority_key) == (first.files.authority, first.files.authority_key)
    assert second.serving.public_key() != first.serving.public_key()
    assert second.serving.not_valid_after_utc == later - BACKDATING + timedelta(days=90)


def test_renewed_authority_verifies_in_both_directions(first: Contents) -> None:
    later = NOW + timedelta(days=2500)
    second = parse(renew(first, decide(first, HOST, later), HOST, later))
    assert len(second.authorities) == 1
    assert second.authorities[0].not_valid_after_utc > first.authorities[0].not_valid_after_utc
    second.serving.verify_directly_issued_by(first.authorities[0])
    first.serving.verify_directly_issued_by(second.authorities[0])


def test_adopted_certificate_gets_a_second_authority(first: Contents) -> None:
    earlier = parse(replace(first.files, authority_key=b""))
    adopted = parse(renew(earlier, Renewal(authority=MISSING), HOST, NOW))
    assert (adopted.files.certificate, adopted.files.key) == (first.files.certificate, first.files.key)
    assert adopted.authorities[1:] == first.authorities
    assert adopted.authorities[0].subject != first.authorities[0].subject
    assert decide(adopted, HOST, NOW) == Renewal()


def test_expired_authorities_are_dropped(first: Contents) -> None:
    earlier = parse(replace(first.files, authority_key=b""))
    later = NOW + timedelta(days=3700)
    renewed = parse(renew(earlier, Renewal(MISSING, DUE), HOST, later))
    assert len(renewed.authorities) == 1


def test_authority_may_sign_only_serving_certificates(first: Contents) -> None:
    (authority,) = first.authorities
    assert authority.extensions.get_extension_for_class(x509.BasicConstraints).value == x509.BasicConstraints(
        ca=True, path_length=0
    )
    usage = first.serving.extensions.get_extension_for_class(x509.KeyUsage).value
    assert (usage.digital_signature, usage.key_cert_sign) == (True, False)


def test_no_file_is_no_contents() -> None:
    assert not CertificateFiles()
    assert not CertificateFiles.from_data({"other": b"x"})
    assert CertificateFiles.from_data({"ca.key": b"x"})
