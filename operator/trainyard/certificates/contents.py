"""Parse and validate the files of a certificate Secret. Pure: no I/O, no clock."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes, PublicKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

CERTIFICATE, KEY, AUTHORITY, AUTHORITY_KEY = "tls.crt", "tls.key", "ca.crt", "ca.key"
"""The names in a Secret or a folder. The first three are those of cert-manager and of `kubernetes.io/tls`."""


class CertificateError(Exception):
    """The files cannot be used; the message names the file and the error."""


@dataclass(frozen=True, slots=True)
class CertificateFiles:
    """The files, in PEM. An absent file is empty."""

    certificate: bytes = b""
    """The serving certificate, and any intermediates after it."""
    key: bytes = b""
    authority: bytes = b""
    """The certificates with which workers verify. Empty: every system already trusts the serving certificate."""
    authority_key: bytes = b""
    """The key of one of these certificates. Empty: somebody else renews the certificate."""

    @classmethod
    def from_data(cls, data: Mapping[str, bytes]) -> "CertificateFiles":
        """Return the files of a Secret or a folder, by name."""
        return cls(*(data.get(name, b"") for name in (CERTIFICATE, KEY, AUTHORITY, AUTHORITY_KEY)))

    @property
    def data(self) -> dict[str, bytes]:
        """Return all files by name."""
        names = (CERTIFICATE, KEY, AUTHORITY, AUTHORITY_KEY)
        return dict(zip(names, (getattr(self, each.name) for each in fields(self)), strict=True))

    def __bool__(self) -> bool:
        return any(self.data.values())


@dataclass(frozen=True, slots=True)
class IssuingAuthority:
    """A certificate authority of the operator itself."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


@dataclass(frozen=True, slots=True)
class Contents:
    """The parsed and consistent files."""

    files: CertificateFiles
    serving: x509.Certificate
    authorities: tuple[x509.Certificate, ...]
    issuer: IssuingAuthority | None
    """Issues the next serving certificate. None: the operator did not issue this one, and never replaces it."""


def end_of(certificate: bytes) -> datetime | None:
    """Return the end of the lifetime of a serving certificate; None where only OpenSSL can read it."""
    try:
        return _certificates(certificate, CERTIFICATE)[0].not_valid_after_utc
    except CertificateError:
        return None


def parse(files: CertificateFiles) -> Contents:
    """Return the contents of the files. Raises CertificateError where they are broken or do not belong together."""
    serving = _certificates(files.certificate, CERTIFICATE)[0]
    authorities = _certificates(files.authority, AUTHORITY) if files.authority.strip() else ()
    if _encoded(_private_key(files.key, KEY).public_key()) != _encoded(serving.public_key()):
        raise CertificateError(f"{KEY} is not the key of {CERTIFICATE}")
    issuer = _issuer(files.authority_key, authorities) if files.authority_key else None
    if issuer is not None and not any(_has_issued(each, serving) for each in authorities):
        raise CertificateError(f"{CERTIFICATE} was not issued by a certificate of {AUTHORITY}")
    return Contents(files, serving, authorities, issuer)


def _certificates(text: bytes, name: str) -> tuple[x509.Certificate, ...]:
    if not text:
        raise CertificateError(f"{name} is missing")
    try:
        found = tuple(x509.load_pem_x509_certificates(text))
        for each in found:
            each.public_key()
    # `InvalidVersion` is no ValueError.
    except (ValueError, UnsupportedAlgorithm, x509.InvalidVersion) as error:
        raise CertificateError(f"{name} holds no certificate in PEM: {error}") from error
    return found


def _private_key(text: bytes, name: str) -> PrivateKeyTypes:
    if not text:
        raise CertificateError(f"{name} is missing")
    try:
        return load_pem_private_key(text, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise CertificateError(f"{name} holds no unencrypted private key in PEM: {error}") from error


def _issuer(key: bytes, authorities: tuple[x509.Certificate, ...]) -> IssuingAuthority:
    private = _private_key(key, AUTHORITY_KEY)
    for each in authorities:
        if isinstance(private, ec.EllipticCurvePrivateKey) and private.public_key() == each.public_key():
            return IssuingAuthority(each, private)
    raise CertificateError(f"{AUTHORITY_KEY} is not the key of a certificate in {AUTHORITY}")


def _has_issued(authority: x509.Certificate, serving: x509.Certificate) -> bool:
    try:
        serving.verify_directly_issued_by(authority)
    except (InvalidSignature, ValueError, TypeError, UnsupportedAlgorithm):
        return False
    return True


def _encoded(key: PublicKeyTypes) -> bytes:
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
