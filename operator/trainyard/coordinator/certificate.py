"""The coordinator's certificate, from the files of a mounted Secret, and the authority by which workers verify it."""

import logging
import ssl
from dataclasses import dataclass, field
from pathlib import Path

_LOG = logging.getLogger(__name__)

CERTIFICATE, KEY, AUTHORITY = "tls.crt", "tls.key", "ca.crt"
"""The file names of cert-manager and of Secrets of type `kubernetes.io/tls`."""
MAX_AUTHORITY_BYTES = 32 * 1024
"""The authority is an environment variable in each pod."""


class CertificateError(Exception):
    """The files cannot be used; the message names the file and the error."""


@dataclass(slots=True)
class Certificate:
    """The certificate in `folder`. Raises CertificateError where the files cannot be used at the start."""

    folder: Path
    context: ssl.SSLContext = field(init=False)
    """The context of all connections. A connection that opens later uses the newest certificate."""
    authority: str = field(default="", init=False)
    """In PEM. Empty: every system already trusts the certificate."""
    _loaded: tuple[bytes, ...] = field(default=(), init=False)

    def __post_init__(self) -> None:
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._load()

    def reload(self) -> None:
        """Load renewed files. Where they cannot be used, keep the earlier certificate."""
        try:
            if self._load():
                _LOG.info(f"loaded renewed certificate folder={self.folder}")
        except CertificateError as error:
            _LOG.error(f"cannot load renewed certificate, keeping the earlier one error={str(error)!r}")

    def _load(self) -> bool:
        """Load the files. Return whether they have changed since the last time."""
        files = tuple(_read(self.folder / name) for name in (CERTIFICATE, KEY))
        authority = _read(self.folder / AUTHORITY) if (self.folder / AUTHORITY).exists() else b""
        content = (*files, authority)
        if content == self._loaded:
            return False
        self._loaded = content
        text = _validated_authority(authority, self.folder / AUTHORITY)
        _load_key_pair(self.folder, ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
        _load_key_pair(self.folder, self.context)
        self.authority = text
        return True


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise CertificateError(f"{path} cannot be read: {error.strerror}") from error


def _validated_authority(authority: bytes, path: Path) -> str:
    if not authority.strip():
        return ""
    if len(authority) > MAX_AUTHORITY_BYTES:
        raise CertificateError(f"{path} is longer than {MAX_AUTHORITY_BYTES} bytes: use a chain of fewer certificates")
    try:
        text = authority.decode("ascii")
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=text)
    except (UnicodeDecodeError, ssl.SSLError) as error:
        raise CertificateError(f"{path} holds no certificate in PEM: {error}") from error
    return text


def _load_key_pair(folder: Path, context: ssl.SSLContext) -> None:
    try:
        # A password callback that returns nothing: OpenSSL would otherwise prompt at a terminal.
        context.load_cert_chain(folder / CERTIFICATE, folder / KEY, password=lambda: b"")
    except (ssl.SSLError, OSError) as error:
        raise CertificateError(f"{folder / CERTIFICATE} and {KEY} do not make a certificate: {error}") from error
