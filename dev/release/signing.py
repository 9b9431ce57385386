"""Sign and verify with cosign and a key file: no certificate authority, transparency log, timestamps or trusted root.

Signing uses a configuration without services, and verification uses --insecure-ignore-tlog, so both contact only the
registry. This module does not decide what is signed.
"""

import base64
import json
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dev.release.commands import ReleaseError, run

NO_SERVICES = {
    "signing-config": {"mediaType": "application/vnd.dev.sigstore.signingconfig.v0.2+json"},
    "trusted-root": {"mediaType": "application/vnd.dev.sigstore.trustedroot+json;version=0.1"},
}
OFFLINE = "--insecure-ignore-tlog=true"
SIGNATURE = "https://sigstore.dev/cosign/sign/v1"
SPDX = "spdxjson"
SLSA = "slsaprovenance1"


@dataclass(frozen=True, slots=True)
class Signer:
    """A private key, and the program that signs by it."""

    cosign: Path
    key: Path
    password: str

    @property
    def _environment(self) -> dict[str, str]:
        return {"COSIGN_PASSWORD": self.password}

    def public_key(self) -> str:
        """The public half, as PEM.

        Raises:
            ReleaseError: the file is no key of cosign's, or the password is another's.
        """
        command = (self.cosign, "public-key", "--key", self.key)
        try:
            return run(*command, doing="reading the key", environment=self._environment)
        except ReleaseError as error:
            raise ReleaseError(f"the key {self.key} cannot be used: {plainly(str(error))}") from error

    def sign(self, reference: str) -> None:
        """Put a signature of the image or chart beside it.

        Raises:
            ReleaseError: the registry does not take it.
        """
        self._cosign("sign", reference, doing=f"signing {reference}")

    def attest(self, reference: str, kind: str, predicate: Path) -> None:
        """Put a signed statement on the image or chart beside it.

        Raises:
            ReleaseError: the registry does not take it.
        """
        statement = ("--type", kind, "--predicate", predicate)
        self._cosign("attest", *statement, reference, doing=f"attesting {predicate.name} of {reference}")

    def sign_file(self, file: Path, bundle: Path) -> None:
        """Write the signature of a file beside it.

        Raises:
            ReleaseError: it cannot be read or written.
        """
        self._cosign("sign-blob", "--bundle", bundle, file, doing=f"signing {file}")
        bundle.chmod(0o644)  # cosign restricts it to its owner

    def _cosign(self, verb: str, *words: str | Path, doing: str) -> None:
        with _no_services() as options:
            command = (self.cosign, verb, "--yes", "--key", self.key, *options, *words)
            run(*command, doing=doing, environment=self._environment)


@dataclass(frozen=True, slots=True)
class Verifier:
    """What a user has: the program and the public key."""

    cosign: Path
    key: Path

    def signature(self, reference: str) -> tuple[str, ...]:
        """The command that verifies an image or chart."""
        return (str(self.cosign), "verify", "--key", str(self.key), OFFLINE, reference)

    def attestation(self, reference: str, kind: str) -> tuple[str, ...]:
        """The command that verifies a statement on an image."""
        options = ("--key", str(self.key), OFFLINE, "--type", kind)
        return (str(self.cosign), "verify-attestation", *options, reference)

    def file(self, file: Path, bundle: Path) -> tuple[str, ...]:
        """The command that verifies a file."""
        options = ("--key", str(self.key), OFFLINE, "--bundle", str(bundle))
        return (str(self.cosign), "verify-blob", *options, str(file))

    def require_signed(self, reference: str) -> None:
        """The image or chart has a signature of the key, and not only statements on it.

        Raises:
            ReleaseError: it has none.
        """
        doing = f"verifying the signature of {reference}"
        if SIGNATURE not in run(*self.signature(reference), doing=doing):
            # cosign takes any statement that the key has signed for a signature.
            raise ReleaseError(f"{doing} failed: found attestations but no signature")

    def predicates(self, reference: str, kind: str) -> list[dict[str, Any]]:
        """What the verified statements of a kind on an image say.

        Raises:
            ReleaseError: there is none, or one is not signed by the key, or it is on something else.
        """
        output = run(*self.attestation(reference, kind), doing=f"verifying the {kind} of {reference}")
        return statements(output)


def statements(output: str) -> list[dict[str, Any]]:
    """Return the predicates in the output of `cosign verify-attestation`, one envelope per line."""
    envelopes = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    return [json.loads(base64.b64decode(envelope["payload"]))["predicate"] for envelope in envelopes]


def plainly(output: str) -> str:
    """Return an error message of cosign about keys in plain words."""
    if "decryption failed" in output:
        return "COSIGN_PASSWORD is not its password"
    if re.search(r"\bpem\b|decrypt", output):
        return "it is not a cosign private key (create one with `cosign generate-key-pair`)"
    return output


def open_key(cosign: Path, key: Path | None) -> Signer:
    """The key of this name, with its password from COSIGN_PASSWORD.

    Raises:
        ReleaseError: it is not named, not there, or has no password.
    """
    if key is None:
        raise ReleaseError("--key is missing: name cosign's private key, or try it out with --local")
    if not key.is_file():
        raise ReleaseError(f"there is no key {key}: `cosign generate-key-pair` makes one")
    password = os.environ.get("COSIGN_PASSWORD")
    if password is None:
        raise ReleaseError(f"COSIGN_PASSWORD is not set: it holds the password of {key}, and may be empty")
    return Signer(cosign, key, password)


@contextmanager
def throw_away_key(cosign: Path) -> Iterator[Signer]:
    """Yield a temporary key, which is deleted on exit."""
    with tempfile.TemporaryDirectory() as folder:
        signer = Signer(cosign, Path(folder) / "cosign.key", "")
        command = (cosign, "generate-key-pair", "--output-key-prefix", signer.key.with_suffix(""))
        run(*command, doing="making a key", environment={"COSIGN_PASSWORD": ""})
        yield signer


@contextmanager
def _no_services() -> Iterator[tuple[str, ...]]:
    with tempfile.TemporaryDirectory() as folder:
        options: list[str] = []
        for name, content in NO_SERVICES.items():
            file = Path(folder) / f"{name}.json"
            file.write_text(json.dumps(content))
            options += [f"--{name}", str(file)]
        yield tuple(options)
