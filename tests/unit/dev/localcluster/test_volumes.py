"""The StorageClass of the local cluster, and what `down` removes of it."""

from pathlib import Path

import pytest

from dev.localcluster import control_plane, volumes
from dev.localcluster.paths import Paths


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return Paths(cache=tmp_path / "cache")


def test_claims_without_a_class_get_this_one() -> None:
    annotations = volumes.STORAGE_CLASS["metadata"]["annotations"]
    assert annotations == {"storageclass.kubernetes.io/is-default-class": "true"}


def test_controller_manager_provisions_folders(paths: Paths) -> None:
    assert "--enable-hostpath-provisioner=true" in control_plane._controller_manager(paths, scale=False)


def test_down_removes_its_own_link_only(paths: Paths, tmp_path: Path) -> None:
    own, other, folder = tmp_path / "own", tmp_path / "other", tmp_path / "folder"
    own.symlink_to(paths.state / "volumes")
    other.symlink_to(tmp_path)
    folder.mkdir()
    for each in (own, other, folder, tmp_path / "missing"):
        volumes.remove_link(paths, each)
    assert (own.is_symlink(), other.is_symlink(), folder.is_dir()) == (False, True, True)
