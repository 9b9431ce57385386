"""The certificate that the coordinator serves, and the authority by which workers verify it."""

import asyncio
import hmac
import logging
import os
import ssl
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from trainyard.certificates.contents import (
    AUTHORITY,
    CERTIFICATE,
    KEY,
    CertificateError,
    CertificateFiles,
    end_of,
)

_LOG = logging.getLogger(__name__)

MAX_AUTHORITY_BYTES = 32 * 1024
"""The authority is an environment variable in each pod."""
FOLDER_CHECK_SECONDS = 60.0
"""How often the files of a mounted certificate are read."""


@dataclass(slots=True)
class Certificate:
    """The certificate in use."""

    context: ssl.SSLContext = field(init=False)
    """The context of all connections. A connection that opens later uses the newest certificate; without one, its
    handshake fails, and the agent retries."""
    authority: str = field(default="", init=False)
    """In PEM. Empty: every system already trusts the certificate."""
    ends: datetime | None = field(default=None, init=False)
    """The end of its lifetime. None: not known, or no certificate is loaded yet."""
    loaded: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    """Set once there is a certificate."""
    _files: CertificateFiles = field(default_factory=CertificateFiles, init=False)
    _current: ssl.SSLContext | None = field(default=None, init=False)
    """The context that holds the certificate, a new one for each. OpenSSL keeps one certificate for each type of key in a
    context: it would serve an ECDSA certificate although an RSA one was loaded later.
    """

    def __post_init__(self) -> None:
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.sni_callback = self._choose

    def load(self, files: CertificateFiles) -> bool:
        """Serve this certificate from now on. Return whether it is another one. Raises CertificateError, and keeps the
        earlier one then.
        """
        if files == self._files:
            return False
        authority = _authority_text(files.authority)
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        _load_key_pair(files, made)
        self._current = made
        self._files, self.authority, self.ends = files, authority, end_of(files.certificate)
        self.loaded.set()
        return True

    def attempt_secret(self, job_uid: str, attempt: int) -> str:
        """Return the secret of an attempt, which its agents have in common and no other program can compute.

        Each process that serves agents has the key of the certificate, also where cert-manager issues it. So no secret is stored, and a new leader gives the
        same one. A renewed key changes it: an attempt that starts at that moment may have to start again.
        """
        return hmac.digest(self._files.key, f"trainyard attempt secret\n{job_uid}\n{attempt}".encode(), "sha256").hex()

    def _choose(self, connection: ssl.SSLObject, _host: str | None, _context: ssl.SSLContext) -> None:
        """Serve the newest certificate on a connection that begins, whatever host it names."""
        if self._current is not None:
            connection.context = self._current


@dataclass(slots=True)
class CertificateFolder:
    """A certificate in files that somebody else renews, for example cert-manager."""

    folder: Path
    certificate: Certificate = field(default_factory=Certificate)
    _error: str = field(default="", init=False)

    def load(self) -> bool:
        """Load the files. Return whether they have changed. Raises CertificateError."""
        files = read_folder(self.folder)
        try:
            return self.certificate.load(files)
        except CertificateError as error:
            raise CertificateError(f"{self.folder}: {error}") from error

    async def keep(self) -> None:
        """Load renewed files, for ever."""
        while True:
            await asyncio.sleep(FOLDER_CHECK_SECONDS)
            self.reload()

    def reload(self) -> None:
        """Load renewed files. Where they cannot be used, keep the earlier certificate."""
        try:
            if self.load():
                _LOG.info(f"loaded renewed certificate folder={self.folder}")
            self._error = ""
        except CertificateError as error:
            if str(error) != self._error:
                _LOG.error(f"cannot load renewed certificate, keeping the earlier one error={str(error)!r}")
            self._error = str(error)


def read_folder(folder: Path) -> CertificateFiles:
    """Return the files of a mounted Secret. Raises CertificateError where one cannot be read; `ca.crt` may be absent."""
    certificate, key = (_read(folder / name) for name in (CERTIFICATE, KEY))
    authority = _read(folder / AUTHORITY) if (folder / AUTHORITY).exists() else b""
    return CertificateFiles(certificate, key, authority)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise CertificateError(f"{path} cannot be read: {error.strerror}") from error


def _authority_text(authority: bytes) -> str:
    if not authority.strip():
        return ""
    if len(authority) > MAX_AUTHORITY_BYTES:
        raise CertificateError(
            f"{AUTHORITY} is longer than {MAX_AUTHORITY_BYTES} bytes: use a chain of fewer certificates"
        )
    try:
        text = authority.decode("ascii")
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=text)
    except (UnicodeDecodeError, ssl.SSLError) as error:
        raise CertificateError(f"{AUTHORITY} holds no certificate in PEM: {error}") from error
    return text


def _load_key_pair(files: CertificateFiles, context: ssl.SSLContext) -> None:
    # `ssl` reads only files. This one has no name and lies in memory: the operator's root file system is read-only.
    descriptor = os.memfd_create("certificate", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, files.certificate.rstrip() + b"\n" + files.key)
        # A password callback that returns nothing: OpenSSL would otherwise prompt at a terminal.
        context.load_cert_chain(f"/proc/self/fd/{descriptor}", password=lambda: b"")
    except (ssl.SSLError, OSError) as error:
        raise CertificateError(f"{CERTIFICATE} and {KEY} do not make a certificate: {error}") from error
    finally:
        os.close(descriptor)
