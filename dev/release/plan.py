"""Names: where things go, and what has been released. Pure."""

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path

from dev.release.commands import ReleaseError

REGISTRY = re.compile(r"[a-z0-9][a-z0-9.-]*(:\d+)?(/[a-z0-9]+([._-]+[a-z0-9]+)*)+")
LOOPBACK = ("127.0.0.1", "localhost")


@dataclass(frozen=True, slots=True)
class Artifact:
    """An image or a chart in a registry."""

    name: str
    repository: str
    digest: str

    @property
    def reference(self) -> str:
        """Its name by digest: what is signed, and what users pull."""
        return f"{self.repository}@{self.digest}"


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be released, and where to."""

    registry: str
    """HOST/PATH, under which the images and the chart lie."""
    version: str
    folder: Path
    """Where the files of the release are written."""

    @property
    def plain_http(self) -> bool:
        """On loopback, and nowhere else."""
        return self.host.split(":")[0] in LOOPBACK

    @property
    def host(self) -> str:
        """The registry's host, with its port."""
        return self.registry.split("/")[0]

    def repository(self, name: str) -> str:
        """Where an image lies."""
        return f"{self.registry}/{name}"

    @property
    def charts(self) -> str:
        """Where the chart lies; helm appends the chart's name."""
        return f"{self.registry}/charts"

    @property
    def public_key(self) -> Path:
        """The key that users verify by."""
        return self.folder / "cosign.pub"

    def sbom(self, name: str) -> Path:
        """The SBOM of an image."""
        return self.folder / f"{name}.spdx.json"

    def provenance(self, name: str) -> Path:
        """The provenance of an image."""
        return self.folder / f"{name}.provenance.json"

    @property
    def packaged(self) -> Path:
        """The chart, as it is pushed."""
        return self.folder / f"trainyard-{self.version}.tgz"

    @property
    def sums(self) -> Path:
        """The checksums of all files beside it."""
        return self.folder / "SHA256SUMS"

    @property
    def signature_of_sums(self) -> Path:
        """The signature of the checksums."""
        return self.folder / "SHA256SUMS.sigstore.json"

    @property
    def record(self) -> Path:
        """What was released, for a later look."""
        return self.folder / "release.json"


@dataclass(frozen=True, slots=True)
class Release:
    """What was released."""

    registry: str
    version: str
    commit: str
    images: tuple[Artifact, ...]
    chart: Artifact

    def written(self) -> str:
        """As JSON."""
        return json.dumps(asdict(self), indent=2) + "\n"


def read(folder: Path) -> Release:
    """The release whose files lie in the folder.

    Raises:
        ReleaseError: there is none.
    """
    try:
        recorded = json.loads((folder / "release.json").read_text())
    except FileNotFoundError as error:
        raise ReleaseError(f"{folder} holds no release: run `make release` first") from error
    artifacts = tuple(Artifact(**image) for image in recorded["images"])
    return Release(
        recorded["registry"], recorded["version"], recorded["commit"], artifacts, Artifact(**recorded["chart"])
    )


def require_registry(text: str) -> str:
    """A registry's host and the path in it.

    Raises:
        ReleaseError: it is no such thing.
    """
    if not REGISTRY.fullmatch(text):
        raise ReleaseError(
            f"--registry {text} is not of the form HOST/PATH, in lower case and without https://: registry.example.com/example/trainyard"
        )
    return text
