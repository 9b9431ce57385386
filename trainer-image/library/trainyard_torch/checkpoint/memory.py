"""Checkpoints in the memory of the node, which survive a process but not a pod. Each process stores and loads its own part."""

from __future__ import annotations

import hashlib
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from trainyard_torch.checkpoint.host_memory import host_memory
from trainyard_torch.checkpoint.manifest import CorruptCheckpointError, Manifest, Name
from trainyard_torch.checkpoint.store import Store, StoreError
from trainyard_torch.checkpoint.streams import without_crc32
from trainyard_torch.checkpoint.writer_process import Run, here

if TYPE_CHECKING:
    from collections.abc import Mapping

FOLDER = "trainyard-checkpoints"
GIGABYTE = 1e9


class Memory:
    """The checkpoints in memory of one process, in a folder that only its user may enter.

    Args:
        folder: a folder on a file system in memory, for all trainings and users of the node.
        url: the folder of the training's stored checkpoints. Trainings with other folders are separate.
        rank: the rank of this process.
        processes: the number of processes of this training in the same pod, which write at the same time.
    """

    def __init__(self, folder: str, url: str, rank: int, processes: int = 1) -> None:
        # With the number of the user: with `hostIPC`, pods of other users have the same /dev/shm.
        self._private = Path(folder) / f"{FOLDER}-{os.geteuid()}"
        self._folder = self._private / hashlib.sha256(url.encode()).hexdigest()[:16]
        self._store = Store(str(self._folder))
        self._file = f"rank-{rank:06}.pt"
        self._processes = processes

    def names(self) -> list[Name]:
        """Return the checkpoints of which this process has a part."""
        try:
            self._check_private()
            folders = self._store.folders()
            return [name for each in folders if (name := Name.parse(each)) and self._file in self._store.files(each)]
        except (OSError, StoreError):
            return []

    def reserve(self, state: Mapping[str, Any]) -> None:
        """Make the folder, and check that all processes of this pod have room for their parts. They call it before any of them writes.

        Parts of the same size are assumed. The last checkpoint stays until the new one is complete, so its room does not count.

        Args:
            state: the result of `local`.

        Raises:
            StoreError: the pod's memory limit would be exceeded; or the folder cannot be made, or is another user's.
        """
        try:
            self._private.parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileExistsError):
                self._private.mkdir(mode=stat.S_IRWXU)
            self._check_private()
        except OSError as error:
            raise StoreError(f"cannot write {self._private}: {error}") from error
        need, memory = self._processes * size_of(state), host_memory()
        if memory and need > memory.usable:
            raise StoreError(
                f"cannot write {self._private}: the {self._processes} processes of this pod need {need / GIGABYTE:.2f} GB, and "
                f"{memory.usable / GIGABYTE:.2f} GB of the memory limit of {memory.limit / GIGABYTE:.2f} GB are free"
            )

    def write(self, manifest: Manifest, mark: str, state: Mapping[str, Any], run: Run = here) -> None:
        """Store this process's part, after `reserve`.

        Args:
            manifest: the manifest of the checkpoint, without files.
            mark: the mark of the attempt's claim.
            state: the result of `local`.
            run: where it is written.

        Raises:
            StoreError: there is no space left, or no such folder.
        """
        content = {"manifest": manifest.text(), "mark": mark, "state": dict(state)}
        run(write_part, self._store, f"{manifest.name}/{self._file}", content)

    def read(self, name: Name, marks: Mapping[int, str]) -> tuple[Manifest, dict[str, Any]]:
        """Return this process's part with memory-mapped tensors, which the caller must copy.

        Args:
            name: the name of the checkpoint.
            marks: the marks of the attempts' claims. Parts of another training with the same numbers have other marks.

        Raises:
            CorruptCheckpointError: it is missing, of another training or user, or cannot be read.
        """
        path = self._folder / str(name) / self._file
        try:
            self._check_private()
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
        """Remove all of this process's parts except this one, including partial files. Raises OSError."""
        try:
            self._check_private()
        except OSError:
            return  # nothing in it is ours
        for part in self._folder.glob(f"*/{self._file}*"):
            if part.name != self._file or part.parent.name != str(name):
                part.unlink(missing_ok=True)
                with suppress(OSError):  # other processes have parts in it
                    part.parent.rmdir()

    def _check_private(self) -> None:
        """Raise OSError if the folder is missing, a link, another user's, or open to others."""
        found = self._private.lstat()
        if not stat.S_ISDIR(found.st_mode):
            raise NotADirectoryError(f"{self._private} is not a folder")
        if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & (stat.S_IRWXG | stat.S_IRWXO):
            raise PermissionError(
                f"{self._private} belongs to user {found.st_uid} with mode {stat.S_IMODE(found.st_mode):o}: it must be this user's, with mode 700"
            )


def write_part(store: Store, path: str, content: Mapping[str, Any]) -> None:
    """Write one process's part of a checkpoint. Raises StoreError."""
    with store.writing(path) as stream, without_crc32():
        torch.save(dict(content), stream)


def size_of(state: Any) -> int:
    """Return the bytes of all tensors in a state dict."""
    if isinstance(state, torch.Tensor):
        return int(state.numel() * state.element_size())
    if isinstance(state, dict):
        return sum(map(size_of, state.values()))
    return sum(map(size_of, state)) if isinstance(state, (list, tuple)) else 0
