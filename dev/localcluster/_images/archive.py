"""OCI archives as containerd takes them. It knows files only, nothing of how an image came to be."""

from __future__ import annotations

import hashlib
import io
import json
import re
import tarfile
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

# containerd takes an image's name from the first of the two that it finds in the index.
NAME_ANNOTATIONS: Final = ("io.containerd.image.name", "org.opencontainers.image.ref.name")
MANIFEST_TYPE: Final = "application/vnd.oci.image.manifest.v1+json"
BLOB: Final = re.compile(r"[0-9a-f]{64}")


def pack(folder: Path, reference: str, archive: Path) -> None:
    """Write one image to `archive`, named so that `ctr images import` yields just `reference`.

    `folder` is what `buildah push dir:` leaves: manifest.json and the blobs. Each blob is named by its SHA-256.
    The OCI archives of buildah would be compressed, which takes longer to make and to unpack than it saves on one machine.

    The archive appears whole or not at all: it is written beside its place first.
    """
    manifest = (folder / "manifest.json").read_bytes()
    digest = hashlib.sha256(manifest).hexdigest()
    entry = {
        "mediaType": MANIFEST_TYPE,
        "digest": f"sha256:{digest}",
        "size": len(manifest),
        "annotations": dict.fromkeys(NAME_ANNOTATIONS, reference),
    }
    partial = archive.with_suffix(".partial")
    with tarfile.open(partial, "w", format=tarfile.PAX_FORMAT) as tar:
        _add(tar, "oci-layout", json.dumps({"imageLayoutVersion": "1.0.0"}).encode())
        _add(tar, "index.json", json.dumps({"schemaVersion": 2, "manifests": [entry]}).encode())
        _add(tar, f"blobs/sha256/{digest}", manifest)
        for blob in sorted(path for path in folder.iterdir() if BLOB.fullmatch(path.name)):
            tar.add(blob, f"blobs/sha256/{blob.name}")
    partial.replace(archive)


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))


def remove_others(archive: Path, name: str) -> None:
    """Remove what earlier contents of the image `name` left beside its `archive`, half-written files included.

    Another image may have a longer name that begins with `name` and a hyphen: its files stay.
    """
    for old in archive.parent.glob(f"{name}-*"):
        is_own = "-" not in old.name.removeprefix(f"{name}-")
        if is_own and old != archive and old.suffix in {".tar", ".partial"}:
            old.unlink()
