"""Which files of a Secret can be used."""

import ssl
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from trainyard.certificates.contents import CertificateError, CertificateFiles, end_of, parse
from trainyard.certificates.issuing import renew
from trainyard.certificates.renewal import decide

NOW = datetime(2026, 11, 25, 12, tzinfo=UTC)


def issued() -> CertificateFiles:
    return renew(None, decide(None, "host.svc", NOW), "host.svc", NOW)


FILES, OTHER = issued(), issued()
BROKEN = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"


def test_issued_files_are_consistent() -> None:
    contents = parse(FILES)
    assert contents.files == FILES
    assert contents.issuer is not None
    assert contents.issuer.certificate == contents.authorities[0]


def test_data_has_the_names_of_a_secret() -> None:
    assert set(FILES.data) == {"tls.crt", "tls.key", "ca.crt", "ca.key"}
    assert CertificateFiles.from_data(FILES.data) == FILES


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (replace(FILES, certificate=b""), "tls.crt is missing"),
        (replace(FILES, certificate=b"torn"), "tls.crt holds no certificate in PEM"),
        (replace(FILES, certificate=BROKEN), "tls.crt holds no certificate in PEM"),
        (replace(FILES, key=b""), "tls.key is missing"),
        (replace(FILES, key=b"torn"), "tls.key holds no unencrypted private key in PEM"),
        (replace(FILES, key=OTHER.key), "tls.key is not the key of tls.crt"),
        (replace(FILES, authority=b""), "ca.key is not the key of a certificate in ca.crt"),
        (replace(FILES, authority=b"torn"), "ca.crt holds no certificate in PEM"),
        (replace(FILES, authority_key=b"torn"), "ca.key holds no unencrypted private key in PEM"),
        (replace(FILES, authority_key=OTHER.authority_key), "ca.key is not the key of a certificate in ca.crt"),
        (
            replace(FILES, certificate=OTHER.certificate, key=OTHER.key),
            "tls.crt was not issued by a certificate of ca.crt",
        ),
    ],
)
def test_broken_files_are_named_in_the_error(files: CertificateFiles, words: str) -> None:
    with pytest.raises(CertificateError, match=words):
        parse(files)


def test_files_without_authority_key_belong_to_others() -> None:
    assert parse(replace(FILES, authority_key=b"")).issuer is None
    assert parse(replace(FILES, authority=b"", authority_key=b"")).authorities == ()


def test_version_that_no_certificate_has_is_refused() -> None:
    """cryptography's exception for it is no ValueError."""
    der = bytearray(ssl.PEM_cert_to_DER_cert(FILES.certificate.decode()))
    der[der.index(b"\xa0\x03\x02\x01\x02") + 4] = 7
    other = replace(FILES, certificate=ssl.DER_cert_to_PEM_cert(bytes(der)).encode())
    with pytest.raises(CertificateError, match=r"tls\.crt holds no certificate in PEM"):
        parse(other)
    assert end_of(other.certificate) is None
