"""The certificate that the coordinator shows, from the files of a mounted Secret, and the authority that workers check it by."""

import logging
import ssl
from dataclasses import dataclass, field
from pathlib import Path

_LOG = logging.getLogger(__name__)

CERTIFICATE, KEY, AUTHORITY = "tls.crt", "tls.key", "ca.crt"
"""The names of cert-manager, and of Kubernetes' own type `kubernetes.io/tls`."""
LONGEST_AUTHORITY = 32 * 1024
"""Bytes: it is a variable in each pod."""


class CertificateError(Exception):
    """The files cannot be used; the message says which and why."""


@dataclass(slots=True)
class Certificate:
    """The files in `folder`. Raises CertificateError where they are of no use at the start."""

    folder: Path
    context: ssl.SSLContext = field(init=False)
    """What connections are made with. One that begins later shows the newest certificate."""
    authority: str = field(default="", init=False)
    """In PEM. Empty: the certificate is one that every system trusts."""
    _seen: tuple[bytes, ...] = field(default=(), init=False)

    def __post_init__(self) -> None:
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._load()

    def look(self) -> None:
        """Take up what has been renewed. Where that is of no use, the old one is shown on."""
        try:
            if self._load():
                _LOG.info(f"the certificate in {self.folder} was renewed")
        except CertificateError as error:
            _LOG.error(f"{error}; the earlier one is kept")

    def _load(self) -> bool:
        """Whether there was anything new."""
        files = tuple(_read(self.folder / name) for name in (CERTIFICATE, KEY))
        authority = _read(self.folder / AUTHORITY) if (self.folder / AUTHORITY).exists() else b""
        now = (*files, authority)
        if now == self._seen:
            return False
        self._seen = now
        text = _sound(authority, self.folder / AUTHORITY)
        _try(self.folder, ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
        _try(self.folder, self.context)
        self.authority = text
        return True


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise CertificateError(f"{path} cannot be read: {error.strerror}") from error


def _sound(authority: bytes, path: Path) -> str:
    if not authority.strip():
        return ""
    if len(authority) > LONGEST_AUTHORITY:
        raise CertificateError(f"{path} is longer than {LONGEST_AUTHORITY} bytes, too long for a variable in each pod")
    try:
        text = authority.decode("ascii")
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=text)
    except (UnicodeDecodeError, ssl.SSLError) as error:
        raise CertificateError(f"{path} holds no certificate in PEM: {error}") from error
    return text


def _try(folder: Path, context: ssl.SSLContext) -> None:
    try:
        # Without a password to ask for: at a terminal it would be waited for.
        context.load_cert_chain(folder / CERTIFICATE, folder / KEY, password=lambda: b"")
    except (ssl.SSLError, OSError) as error:
        raise CertificateError(f"{folder / CERTIFICATE} and {KEY} do not make a certificate: {error}") from error
