"""Volumes for claims: the StorageClass `local`, served by the controller manager's own provisioner for folders of this machine.

All nodes share the machine's file system, so that one volume serves the workers of all nodes, as a network file system does.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from dev.localcluster.api import Api
    from dev.localcluster.paths import Paths

CLASSES_PATH: Final = "/apis/storage.k8s.io/v1/storageclasses"
PROVISIONER_FOLDER: Final = Path("/tmp/hostpath_pv")  # noqa: S108 - the provisioner knows no other
STORAGE_CLASS: Final[dict[str, Any]] = {
    "apiVersion": "storage.k8s.io/v1",
    "kind": "StorageClass",
    "metadata": {"name": "local", "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
    "provisioner": "kubernetes.io/host-path",
    "reclaimPolicy": "Delete",
    "volumeBindingMode": "Immediate",
}
FLAGS: Final = {"enable-hostpath-provisioner": "true"}
"""What the controller manager needs for it."""


def make(paths: Paths, api: Api) -> None:
    """Makes the class, and lets the provisioner put its folders into the cluster's state, which `down` removes.

    Raises:
        LocalClusterError: the API server refuses the class.
    """
    folder = _folder(paths)
    folder.mkdir(parents=True, exist_ok=True)
    # Another program's folder of that name is used as it is, and stays.
    if not PROVISIONER_FOLDER.exists():
        PROVISIONER_FOLDER.unlink(missing_ok=True)
        PROVISIONER_FOLDER.symlink_to(folder)
    api.create(CLASSES_PATH, STORAGE_CLASS)


def remove_link(paths: Paths, link: Path = PROVISIONER_FOLDER) -> None:
    """Removes what leads to this cluster's volumes, and no folder of anyone else."""
    if link.is_symlink() and link.readlink() == _folder(paths):
        link.unlink()


def _folder(paths: Paths) -> Path:
    return paths.state / "volumes"
