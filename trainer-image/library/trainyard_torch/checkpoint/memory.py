"""Checkpoints in the memory of the node, which outlive a process and not a pod: each process keeps and takes up its own part."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from trainyard_torch.checkpoint.manifest import CorruptCheckpointError, Manifest, Name
from trainyard_torch.checkpoint.store import Store, StoreError

if TYPE_CHECKING:
    from collections.abc import Mapping

SHARED = "/dev/shm"  # noqa: S108 - a file system in memory
FOLDER = "trainyard-checkpoints"


class Memory:
    """Those of one process.

    Args:
        folder: on a file system in memory, for all trainings of the node.
        url: the folder of the training's stored checkpoints. Trainings with other folders do not see each other's.
        rank: of this process.
    """

    def __init__(self, folder: str, url: str, rank: int) -> None:
        self._folder = Path(folder) / FOLDER / hashlib.sha256(url.encode()).hexdigest()[:16]
        self._store = Store(str(self._folder))
        self._file = f"rank-{rank:06}.pt"

    def names(self) -> list[Name]:
        """What this process has a part of."""
        try:
            folders = self._store.folders()
            return [name for each in folders if (name := Name.parse(each)) and self._file in self._store.files(each)]
        except StoreError:
            return []

    def write(self, manifest: Manifest, mark: str, state: Mapping[str, Any]) -> None:
        """Keep this process's part.

        Args:
            manifest: of the checkpoint; without files.
            mark: that of the attempt's claim.
            state: as `local` makes it.

        Raises:
            StoreError: there is no space left, or no such folder.
        """
        with self._store.writing(f"{manifest.name}/{self._file}") as stream:
            torch.save({"manifest": manifest.text(), "mark": mark, "state": dict(state)}, stream)

    def read(self, name: Name, marks: Mapping[int, str]) -> tuple[Manifest, dict[str, Any]]:
        """This process's part, its tensors mapped: they are to be copied.

        Args:
            name: of the checkpoint.
            marks: those of the attempts' claims. What another training left here under the same numbers has other ones.

        Raises:
            CorruptCheckpointError: it is not there, of another training, or cannot be read.
        """
        path = self._folder / str(name) / self._file
        try:
            found = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
            manifest, mark, state = Manifest.parse(found["manifest"], name), found["mark"], found["state"]
        except CorruptCheckpointError:
            raise
        except Exception as error:
            raise CorruptCheckpointError(
                f"{path} cannot be read: {str(error).splitlines()[0] if str(error) else error!r}"
            ) from error
        if marks.get(name.attempt) != mark:
            raise CorruptCheckpointError(f"{path} is of another training")
        return manifest, state

    def keep(self, name: Name | None) -> None:
        """Remove all of this process's parts except this one, including partial files."""
        for part in self._folder.glob(f"*/{self._file}*"):
            if part.name != self._file or part.parent.name != str(name):
                part.unlink(missing_ok=True)
                with suppress(OSError):  # others have parts in it
                    part.parent.rmdir()
