"""Checkpoints in the memory of the node, which survive a process but not a pod. Each process stores and loads its own part."""

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
    """The checkpoints in memory of one process.

    Args:
        folder: a folder on a file system in memory, for all trainings of the node.
        url: the folder of the training's stored checkpoints. Trainings with other folders are separate.
        rank: the rank of this process.
    """

    def __init__(self, folder: str, url: str, rank: int) -> None:
        self._folder = Path(folder) / FOLDER / hashlib.sha256(url.encode()).hexdigest()[:16]
        self._store = Store(str(self._folder))
        self._file = f"rank-{rank:06}.pt"

    def names(self) -> list[Name]:
        """Return the checkpoints of which this process has a part."""
        try:
            folders = self._store.folders()
            return [name for each in folders if (name := Name.parse(each)) and self._file in self._store.files(each)]
        except StoreError:
            return []

    def write(self, manifest: Manifest, mark: str, state: Mapping[str, Any]) -> None:
        """Store this process's part.

        Args:
            manifest: the manifest of the checkpoint, without files.
            mark: the mark of the attempt's claim.
            state: the result of `local`.

        Raises:
            StoreError: there is no space left, or no such folder.
        """
        with self._store.writing(f"{manifest.name}/{self._file}") as stream:
            torch.save({"manifest": manifest.text(), "mark": mark, "state": dict(state)}, stream)

    def read(self, name: Name, marks: Mapping[int, str]) -> tuple[Manifest, dict[str, Any]]:
        """Return this process's part with memory-mapped tensors, which the caller must copy.

        Args:
            name: the name of the checkpoint.
            marks: the marks of the attempts' claims. Parts of another training with the same numbers have other marks.

        Raises:
            CorruptCheckpointError: it is missing, of another training, or cannot be read.
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
                with suppress(OSError):  # other processes have parts in it
                    part.parent.rmdir()
