"""The archive: an OCI layout whose image has one name, under each annotation that containerd may read."""

import hashlib
import json
import tarfile
from pathlib import Path

import pytest

from dev.localcluster._images.archive import pack, remove_others

REFERENCE = "localhost/trainyard/trainer:dev"
LAYER = b"layer"
MANIFEST = json.dumps(
    {"schemaVersion": 2, "layers": [{"digest": f"sha256:{hashlib.sha256(LAYER).hexdigest()}"}]}
).encode()


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    folder = tmp_path / "exported"
    folder.mkdir()
    (folder / "manifest.json").write_bytes(MANIFEST)
    (folder / "version").write_text("Directory Transport Version: 1.1\n")
    (folder / hashlib.sha256(LAYER).hexdigest()).write_bytes(LAYER)
    return folder


def test_blobs_are_named_by_digest_and_indexed(exported: Path, tmp_path: Path) -> None:
    archive = tmp_path / "trainer-abc.tar"
    pack(exported, REFERENCE, archive)
    with tarfile.open(archive) as tar:
        files = {member.name: tar.extractfile(member) for member in tar}
        contents = {name: file.read() for name, file in files.items() if file}
    assert json.loads(contents.pop("oci-layout")) == {"imageLayoutVersion": "1.0.0"}
    (entry,) = json.loads(contents.pop("index.json"))["manifests"]
    assert contents == {f"blobs/sha256/{hashlib.sha256(blob).hexdigest()}": blob for blob in (LAYER, MANIFEST)}
    assert entry["digest"] == f"sha256:{hashlib.sha256(MANIFEST).hexdigest()}"
    assert entry["size"] == len(MANIFEST)
    assert entry["annotations"] == {
        "io.containerd.image.name": REFERENCE,
        "org.opencontainers.image.ref.name": REFERENCE,
    }


def test_a_failed_export_leaves_no_archive(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        pack(tmp_path / "absent", REFERENCE, tmp_path / "trainer-abc.tar")
    assert list(tmp_path.glob("*.tar")) == []


def test_only_older_archives_of_the_same_image_go(tmp_path: Path) -> None:
    names = [
        "trainer-new.tar",
        "trainer-old.tar",
        "trainer-old.partial",
        "operator-old.tar",
        "pause.tar",
        "trainer-notes.txt",
        "trainer-jax-old.tar",
    ]
    for name in names:
        (tmp_path / name).touch()
    remove_others(tmp_path / "trainer-new.tar", "trainer")
    assert {path.name for path in tmp_path.iterdir()} == {
        "trainer-new.tar",
        "operator-old.tar",
        "pause.tar",
        "trainer-notes.txt",
        "trainer-jax-old.tar",
    }
