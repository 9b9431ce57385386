"""Issue authorities and serving certificates. No I/O, no clock; keys and serial numbers are random."""

from datetime import datetime, timedelta
from secrets import token_hex

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from trainyard.certificates.contents import CertificateFiles, Contents, IssuingAuthority
from trainyard.certificates.renewal import Renewal

AUTHORITY_LIFETIME = timedelta(days=3650)
SERVING_LIFETIME = timedelta(days=90)
BACKDATING = timedelta(days=1)
"""The clock of a worker's node may be behind the API server's."""


def renew(contents: Contents | None, renewal: Renewal, host: str, now: datetime) -> CertificateFiles:
    """Return the files after this renewal.

    A renewed authority keeps its key and name. So workers with the old authority verify certificates that the new one
    issues, and the other way round.
    """
    issuer = contents.issuer if contents is not None else None
    if issuer is None or renewal.authority is not None:
        issuer = _authority(issuer, now)
    others = [] if contents is None else [each for each in contents.authorities if _is_kept(each, issuer, now)]
    authorities = b"".join(map(_certificate_pem, (issuer.certificate, *others)))
    if contents is None or renewal.serving is not None:
        certificate, key = _serving(issuer, host, now)
    else:
        certificate, key = contents.files.certificate, contents.files.key
    return CertificateFiles(certificate, key, authorities, _key_pem(issuer.key))


def _is_kept(authority: x509.Certificate, issuer: IssuingAuthority, now: datetime) -> bool:
    """Return whether workers still need an authority beside the issuer: another process may serve what it issued."""
    return authority.public_key() != issuer.certificate.public_key() and now < authority.not_valid_after_utc


def _authority(earlier: IssuingAuthority | None, now: datetime) -> IssuingAuthority:
    """Return a new authority, or the `earlier` one with a new lifetime."""
    key = earlier.key if earlier is not None else ec.generate_private_key(ec.SECP256R1())
    # A name of its own: with two authorities of one name, a verifier may try only the wrong one.
    name = earlier.certificate.subject if earlier is not None else _name(f"trainyard-coordinator-ca-{token_hex(4)}")
    usage = _usage(signs_certificates=True)
    certificate = (
        _unsigned(name, name, key.public_key(), now, AUTHORITY_LIFETIME)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(key, hashes.SHA256())
    )
    return IssuingAuthority(certificate, key)


def _serving(issuer: IssuingAuthority, host: str, now: datetime) -> tuple[bytes, bytes]:
    """Return a new certificate for the host, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    # The host is not in the subject, which may have only 64 characters.
    subject, server = _name("trainyard-coordinator"), x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
    authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer.key.public_key())
    certificate = (
        _unsigned(subject, issuer.certificate.subject, key.public_key(), now, SERVING_LIFETIME)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(server, critical=False)
        .add_extension(authority, critical=False)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
        .sign(issuer.key, hashes.SHA256())
    )
    return _certificate_pem(certificate), _key_pem(key)


def _unsigned(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime, lifetime: timedelta
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATING)
        .not_valid_after(now - BACKDATING + lifetime)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _certificate_pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
