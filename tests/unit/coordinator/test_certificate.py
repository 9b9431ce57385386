"""The certificate and its renewal."""

import logging
import ssl
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from dev.benchmarks.agents.credentials import certificate
from trainyard.certificates.contents import CertificateError, CertificateFiles
from trainyard.coordinator.certificate import MAX_AUTHORITY_BYTES, Certificate, CertificateFolder


def loaded(folder: Path) -> CertificateFolder:
    shown = CertificateFolder(folder)
    shown.load()
    return shown


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    certificate(tmp_path / "tls")
    return tmp_path / "tls"


def test_workers_are_given_the_authority(folder: Path) -> None:
    assert loaded(folder).certificate.authority == (folder / "ca.crt").read_text()


def test_publicly_trusted_certificate_needs_no_authority(folder: Path) -> None:
    (folder / "ca.crt").unlink()
    assert loaded(folder).certificate.authority == ""


def test_renewed_certificate_is_loaded(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    shown = loaded(folder)
    shown.reload()
    assert not caplog.records
    authority = certificate(folder)
    shown.reload()
    assert shown.certificate.authority == authority
    assert "loaded renewed certificate" in caplog.text


def test_broken_renewal_is_logged_once_and_ignored(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    shown = loaded(folder)
    before = shown.certificate.authority
    (folder / "tls.key").write_text("torn")
    shown.reload()
    shown.reload()
    assert shown.certificate.authority == before
    assert [record.message.count("keeping the earlier one") for record in caplog.records] == [1]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("tls.crt", None, "tls.crt cannot be read: No such file"),
        ("tls.key", None, "tls.key cannot be read: No such file"),
        ("tls.crt", b"no certificate", "tls.crt and tls.key do not make a certificate"),
        ("tls.key", b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", "do not make a certificate"),
        ("ca.crt", b"no certificate", "ca.crt holds no certificate in PEM"),
        ("ca.crt", b"\xff\xfe", "ca.crt holds no certificate in PEM"),
        ("ca.crt", b"x" * (MAX_AUTHORITY_BYTES + 1), "use a chain of fewer certificates"),
    ],
)
def test_unusable_file_is_named_in_the_error(folder: Path, name: str, content: bytes | None, words: str) -> None:
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(content)
    with pytest.raises(CertificateError, match=words):
        loaded(folder)


def test_a_key_of_another_certificate_is_refused(folder: Path, tmp_path: Path) -> None:
    certificate(tmp_path / "other")
    (folder / "tls.key").write_bytes((tmp_path / "other" / "tls.key").read_bytes())
    with pytest.raises(CertificateError, match="do not make a certificate"):
        loaded(folder)


def test_certificate_with_another_type_of_key_is_served() -> None:
    """OpenSSL keeps one certificate for each type of key, and prefers ECDSA."""
    shown = Certificate()
    for key in (ec.generate_private_key(ec.SECP256R1()), rsa.generate_private_key(65537, 2048)):
        shown.load(self_signed(key))
        assert handshake(shown) == shown.authority


def self_signed(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> CertificateFiles:
    name, now = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "host")]), datetime.now(UTC)
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(1).not_valid_before(now).not_valid_after(now + timedelta(days=1))
    names = x509.SubjectAlternativeName([x509.DNSName("host")])
    pem = builder.add_extension(names, critical=False).sign(key, SHA256()).public_bytes(Encoding.PEM)
    return CertificateFiles(pem, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()), pem)


def handshake(shown: Certificate) -> str:
    """Return the certificate that a new connection gets, in PEM."""
    client = ssl.create_default_context()
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = shown.context.wrap_bio(to_server, to_client, server_side=True)
    peer = client.wrap_bio(to_client, to_server, server_hostname="host")
    for side in (peer, server, peer):
        with suppress(ssl.SSLWantReadError):
            side.do_handshake()
    der = peer.getpeercert(binary_form=True)
    assert der is not None
    return ssl.DER_cert_to_PEM_cert(der)
