from __future__ import annotations

import hashlib
import io
import json
import tarfile
from typing import TYPE_CHECKING, Any

import pytest

from dev.localcluster import images_seed, pause_image
from dev.localcluster.errors import LocalClusterError
from dev.localcluster.paths import Paths

if TYPE_CHECKING:
    from pathlib import Path


def unpack(archive: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        files = {member.name: tar.extractfile(member) for member in tar}
        return {name: file.read() for name, file in files.items() if file}


def test_the_pause_image_is_a_whole_oci_layout() -> None:
    files = unpack(pause_image.build(b"the program", "arm64"))
    [entry] = json.loads(files["index.json"])["manifests"]
    assert entry["annotations"]["io.containerd.image.name"] == "localhost/pause:1"

    def blob(descriptor: dict[str, Any]) -> bytes:
        algorithm, digest = descriptor["digest"].split(":")
        content = files[f"blobs/{algorithm}/{digest}"]
        assert hashlib.sha256(content).hexdigest() == digest
        assert len(content) == descriptor["size"]
        return content

    manifest = json.loads(blob(entry))
    config = json.loads(blob(manifest["config"]))
    [layer] = [blob(descriptor) for descriptor in manifest["layers"]]
    assert config["architecture"] == "arm64"
    assert config["rootfs"]["diff_ids"] == [manifest["layers"][0]["digest"]]
    assert unpack(layer) == {"catatonit": b"the program"}


def test_the_same_program_makes_the_same_image() -> None:
    assert pause_image.build(b"a", "amd64") == pause_image.build(b"a", "amd64")
    assert pause_image.build(b"a", "amd64") != pause_image.build(b"b", "amd64")


def test_a_changed_archive_is_another_one(tmp_path: Path) -> None:
    path = tmp_path / "image.tar"
    path.write_bytes(b"1")
    before = images_seed.archive(path)
    assert images_seed.archive(path) == before
    path.write_bytes(b"22")
    assert images_seed.archive(path) != before


def test_a_missing_archive_is_named(tmp_path: Path) -> None:
    with pytest.raises(LocalClusterError, match=r"there is no image archive .*none\.tar"):
        images_seed.archive(tmp_path / "none.tar")


def test_store_records_newest_version_of_each_archive(tmp_path: Path) -> None:
    old, new, other = (images_seed.Archive(*entry) for entry in (("/a", 1, 1), ("/a", 2, 2), ("/b", 1, 1)))
    assert images_seed.recorded(tmp_path) == []
    images_seed.record(tmp_path, [old, other], [new])
    assert images_seed.recorded(tmp_path) == [new, other]


@pytest.mark.parametrize(
    "content", ["", "[{", '[{"path": "/a"}]', '[{"path": "/a", "size": 1, "modified": 1, "x": 1}]']
)
def test_a_broken_record_counts_as_none(tmp_path: Path, content: str) -> None:
    (tmp_path / images_seed.RECORD).write_text(content)
    assert images_seed.recorded(tmp_path) == []


def test_a_node_has_databases_of_its_own(tmp_path: Path) -> None:
    paths = Paths(tmp_path)
    plugin = paths.seed / "containerd" / "plugin"
    image = plugin / "snapshots" / "1"
    image.mkdir(parents=True)
    (plugin / "meta.db").write_bytes(b"1")
    (image / "file").write_bytes(b"1")
    (image / "dangling.db").symlink_to("missing")
    (paths.seed / images_seed.RECORD).write_text("{}")

    images_seed.clone(paths, 1)
    own = paths.node(1) / "containerd" / "plugin"
    assert (own / "snapshots" / "1" / "file").samefile(image / "file")
    assert (own / "snapshots" / "1" / "dangling.db").is_symlink()
    (own / "meta.db").write_bytes(b"2")
    assert (plugin / "meta.db").read_bytes() == b"1"
