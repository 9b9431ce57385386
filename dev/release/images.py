"""The images: built as the local cluster's are, pushed by skopeo, and looked at for what their provenance tells."""

import hashlib
import json
import re
import tarfile
from pathlib import Path
from typing import Any

from dev.localcluster import images
from dev.localcluster.host import require_commands
from dev.release.commands import ReleaseError, run
from dev.release.plan import Artifact, Plan
from dev.release.provenance import Base, Build
from dev.release.source import ROOT

RELEASED = ("operator", "trainer")
PINNING = {
    "operator": ("Dockerfile", "build-requirements.txt", "pyproject.toml", "uv.lock"),
    "trainer": ("trainer-image/Dockerfile", "trainer-image/install-torch.sh", "trainer-image/requirements-cuda.txt"),
}
"""The files that say what a build fetches."""


def build() -> dict[str, Path]:
    """An OCI archive for each image.

    Raises:
        LocalClusterError: a build failed.
    """
    return dict(zip(RELEASED, images.build(*RELEASED), strict=True))


def push(archive: Path, name: str, plan: Plan) -> Artifact:
    """Push it, its layers compressed, under the version as its tag. What the registry has already is not sent again.

    Raises:
        ReleaseError: the registry does not take it.
    """
    tagged = f"{plan.repository(name)}:{plan.version}"
    # No policy of this host's is asked: the archive is our own.
    copy = ("copy", "--quiet", "--insecure-policy", "--format", "oci")
    transport = ("--dest-tls-verify=false",) if plan.plain_http else ()
    _skopeo(*copy, *transport, f"oci-archive:{archive}", f"docker://{tagged}", doing=f"pushing {tagged}")
    return Artifact(name, plan.repository(name), digest_of(tagged, plan))


def digest_of(reference: str, plan: Plan) -> str:
    """The digest of what the registry has under this reference.

    Raises:
        ReleaseError: it has nothing there.
    """
    transport = ("--tls-verify=false",) if plan.plain_http else ()
    inspect = ("inspect", "--raw", *transport, f"docker://{reference}")
    manifest = _skopeo(*inspect, doing=f"looking up {reference}")
    return f"sha256:{hashlib.sha256(manifest.encode()).hexdigest()}"


def described(archive: Path, name: str, version: str) -> Build:
    """Return the provenance facts of an image, from its archive and the repository.

    Raises:
        ReleaseError: the archive is not one of `dev.localcluster.images`.
    """
    image = images.IMAGES[name]
    config = _configuration(archive)
    return Build(
        image=name,
        version=version,
        dockerfile=str(image.dockerfile.relative_to(ROOT)),
        base=Base(image.below, str(config["rootfs"]["diff_ids"][0])),
        files={file: hashlib.sha256((ROOT / file).read_bytes()).hexdigest() for file in PINNING[name]},
        finished=to_the_second(str(config["created"])),
    )


def to_the_second(time: str) -> str:
    """An RFC 3339 time without fractions: cosign writes those with other numbers of digits, and the predicate must stay what it is."""
    return re.sub(r"\.\d+", "", time)


def _configuration(archive: Path) -> dict[str, Any]:
    with tarfile.open(archive) as tar:

        def blob(name: str) -> Any:
            if (member := tar.extractfile(name)) is None:
                raise ReleaseError(f"{archive} holds no {name}: remove the file and try again")
            return json.load(member)

        [entry] = blob("index.json")["manifests"]
        manifest = blob(f"blobs/{entry['digest'].replace(':', '/')}")
        config: dict[str, Any] = blob(f"blobs/{manifest['config']['digest'].replace(':', '/')}")
        return config


def _skopeo(*words: str, doing: str) -> str:
    require_commands({"skopeo": "skopeo"})
    return run("skopeo", *words, doing=doing)
