"""The image of every pod's first container: catatonit, a static init that only waits, as an OCI archive."""

from __future__ import annotations

import hashlib
import io
import json
import platform
import shutil
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dev.localcluster.errors import LocalClusterError
from dev.localcluster.node_config import PAUSE_IMAGE

if TYPE_CHECKING:
    from dev.localcluster.paths import Paths

ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}
OCI: Final = "application/vnd.oci.image"


def ensure(paths: Paths) -> Path:
    """The archive in the images folder; rewritten only when its contents would differ.

    Raises:
        LocalClusterError: catatonit is not installed.
    """
    program = shutil.which("catatonit")
    if program is None:
        raise LocalClusterError("the command catatonit is missing: install the package catatonit")
    archive = build(Path(program).read_bytes(), ARCHITECTURES.get(platform.machine(), platform.machine()))
    path = paths.images / "pause.tar"
    if not path.exists() or path.read_bytes() != archive:
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch = path.with_suffix(".new")
        scratch.write_bytes(archive)
        scratch.rename(path)
    return path


def build(init: bytes, architecture: str) -> bytes:
    """The archive's bytes, the same for the same program. See the OCI image layout specification."""
    layer = _tar({"catatonit": init}, mode=0o755)
    config = _json(
        {
            "architecture": architecture,
            "os": "linux",
            "config": {"Entrypoint": ["/catatonit", "-P"], "User": "65535:65535"},
            "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]},
        }
    )
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": f"{OCI}.manifest.v1+json",
            "config": _descriptor(f"{OCI}.config.v1+json", config),
            "layers": [_descriptor(f"{OCI}.layer.v1.tar", layer)],
        }
    )
    name = {"io.containerd.image.name": PAUSE_IMAGE, "org.opencontainers.image.ref.name": PAUSE_IMAGE.split(":")[1]}
    entry = {**_descriptor(f"{OCI}.manifest.v1+json", manifest), "annotations": name}
    index = _json({"schemaVersion": 2, "mediaType": f"{OCI}.index.v1+json", "manifests": [entry]})
    blobs = {f"blobs/{_digest(blob).replace(':', '/')}": blob for blob in (layer, config, manifest)}
    return _tar({"oci-layout": _json({"imageLayoutVersion": "1.0.0"}), "index.json": index, **blobs}, mode=0o644)


def _descriptor(media_type: str, blob: bytes) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": _digest(blob), "size": len(blob)}


def _digest(blob: bytes) -> str:
    return f"sha256:{hashlib.sha256(blob).hexdigest()}"


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value, sort_keys=True).encode()


def _tar(files: dict[str, bytes], mode: int) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), mode
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()
