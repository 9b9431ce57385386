"""Keep the coordinator's certificate in its Secret: issue, renew, and load what another process has stored.

Every process does this: a standby needs a certificate to become the leader. The version of the Secret lets only one
of them store a new certificate; the others load it. `trainyard.certificates` decides what is due.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from trainyard.certificates.contents import AUTHORITY, CertificateError, CertificateFiles, Contents, parse
from trainyard.certificates.issuing import renew
from trainyard.certificates.renewal import Renewal, RenewalReason, decide
from trainyard.coordinator.certificate import Certificate, read_folder
from trainyard.kube.backoff import Backoff
from trainyard.kube.errors import ApiError
from trainyard.kube.secret import Secret, SecretClient

_LOG = logging.getLogger(__name__)

CHECK_SECONDS = 300.0
"""How often the Secret is read. A renewed certificate and the one before it are both valid for a month."""
MAX_RETRY_SECONDS = 60.0


@dataclass(slots=True)
class CertificateKeeper:
    """The certificate of one Secret, and the part of it that this process serves."""

    client: SecretClient
    certificate: Certificate
    host: str
    """The name by which workers reach the operator."""
    earlier: Path
    """The folder of a certificate that the chart once made. Running workers trust it."""
    now: Callable[[], datetime]
    """The API server's clock: the one of this machine may be wrong."""
    on_failure: Callable[[], object] = lambda: None
    """Called for each failed check."""
    problem: str = field(default="", init=False)
    """Why the last check failed; empty if it did not."""
    _stored: CertificateFiles = field(default_factory=CertificateFiles, init=False)
    """What this process has last seen in the Secret, or stored in it."""

    async def keep(self) -> None:
        """Check the Secret now and then, for ever, and soon again after a failure."""
        backoff, failures = Backoff(base=0.5, cap=MAX_RETRY_SECONDS), 0
        while True:
            failures = 0 if await self.check() else failures + 1
            await asyncio.sleep(backoff(failures) if failures else CHECK_SECONDS)

    async def check(self) -> bool:
        """Load what is stored, and renew what is due. Return whether that succeeded. Never raises an error of the
        Secret or of the API server: the earlier certificate stays in use.
        """
        try:
            await self._check()
        except ApiError as error:
            if error.conflict:
                _LOG.info(f"another process has changed the certificate, reading it again secret={self.client.name}")
                return False
            self._report(str(error))
            return False
        except CertificateError as error:
            self._report(f"{self._secret}: {error}")
            return False
        if self.problem:
            _LOG.info(f"the certificate's Secret can be used again secret={self.client.name}")
        self.problem = ""
        return True

    def obstacle(self) -> str:
        """Return one sentence while there is no certificate, and nothing otherwise."""
        if self.certificate.loaded.is_set():
            return ""
        return f"the coordinator has no certificate: {self.problem or f'{self._secret} has not been read yet'}"

    async def _check(self) -> None:
        secret = await self.client.read()
        if secret is None:
            raise CertificateError("it does not exist; create it without data (`helm upgrade` does so)")
        files = CertificateFiles.from_data(secret.data)
        if not files:
            await self._store(secret, self._initial())
        elif not files.authority_key:
            self._load_foreign(files)
        else:
            contents = parse(files)
            self._load(files)
            if renewal := decide(contents, self.host, self.now()):
                await self._store(secret, self._renewed(contents, renewal))

    def _initial(self) -> CertificateFiles:
        """Return the files for an empty Secret: those before somebody emptied it, those of the chart, or new ones."""
        if self._stored.authority_key:
            _LOG.warning(f"restoring the certificate of an emptied Secret secret={self.client.name}")
            contents = parse(self._stored)
        elif (earlier := self._earlier()) is not None:
            # Workers that start from now on also trust the new authority, which issues the next certificate.
            contents = parse(self._renewed(earlier, Renewal(authority=RenewalReason.MISSING)))
        else:
            return self._renewed(None, decide(None, self.host, self.now()))
        renewal = decide(contents, self.host, self.now())
        return self._renewed(contents, renewal) if renewal else contents.files

    def _earlier(self) -> Contents | None:
        """Return the certificate that the chart once made, or None where there is none that can be used."""
        try:
            contents = parse(read_folder(self.earlier))
        except CertificateError as error:
            _LOG.debug(f"no certificate to begin with folder={self.earlier} error={str(error)!r}")
            return None
        if not contents.authorities:
            _LOG.warning(f"ignoring a certificate without {AUTHORITY} folder={self.earlier}")
            return None
        return contents

    def _renewed(self, contents: Contents | None, renewal: Renewal) -> CertificateFiles:
        _LOG.info(
            f"issuing certificates secret={self.client.name} host={self.host} "
            f"authority={renewal.authority or 'kept'} serving={renewal.serving or 'kept'}"
        )
        return renew(contents, renewal, self.host, self.now())

    async def _store(self, secret: Secret, files: CertificateFiles) -> None:
        await self.client.replace(secret, files.data)
        self._load(files)

    def _load(self, files: CertificateFiles) -> None:
        if self.certificate.load(files):
            _LOG.info(f"loaded certificate secret={self.client.name} ends={self.certificate.ends}")
        self._stored = files

    def _load_foreign(self, files: CertificateFiles) -> None:
        """Serve a certificate that a user has stored in the operator's Secret, and never write it."""
        self._load(files)
        if (ends := self.certificate.ends) is not None and ends < self.now():
            raise CertificateError(
                f"the certificate expired at {ends.isoformat()}, and the operator renews only its own: "
                "store another one, or remove all data"
            )

    @property
    def _secret(self) -> str:
        return f"the Secret {self.client.namespace}/{self.client.name}"

    def _report(self, problem: str) -> None:
        self.on_failure()
        if problem != self.problem:
            _LOG.error(f"cannot keep the coordinator's certificate, retrying error={problem!r}")
        self.problem = problem
