"""Find and load the best usable checkpoint, from memory or from the store. All processes take part."""

from __future__ import annotations

import logging
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.stateful import Stateful

from trainyard_torch.checkpoint.communicator import RankFailedError
from trainyard_torch.checkpoint.history import verify
from trainyard_torch.checkpoint.host_memory import host_memory
from trainyard_torch.checkpoint.manifest import CorruptCheckpointError, Manifest, Name
from trainyard_torch.checkpoint.plain_values import PlainLoadPlanner
from trainyard_torch.checkpoint.state import fits, keys_of, plain, put
from trainyard_torch.checkpoint.store import StoreError
from trainyard_torch.checkpoint.streams import Reader
from trainyard_torch.errors import first_line
from trainyard_torch.process_info import ProcessInfo

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trainyard_torch.checkpoint.communicator import Communicator
    from trainyard_torch.checkpoint.history import History
    from trainyard_torch.checkpoint.memory import Memory
    from trainyard_torch.checkpoint.store import Store

logger = logging.getLogger(__name__)
WRITER = re.compile(r"__(\d{1,9})_\d+\.distcp")
"""A file of torch.distributed.checkpoint, with the rank that wrote it."""


class CheckpointError(Exception):
    """A checkpoint could not be written or read. The message names it, and the fix."""


class NoUsableCheckpointError(CheckpointError):
    """There are checkpoints, but none of them is usable. A restart would not help, and starting from step 0 would discard the training."""

    exit_code = 95


class CheckpointSaveError(CheckpointError):
    """A checkpoint that had to be stored, such as the last one of a training, could not be stored. A restart resumes from the one before."""

    exit_code = 97


@dataclass(frozen=True)
class CheckpointLoader:
    """Where to look for checkpoints. `history` is used on rank 0 only; `mesh` holds the layout of the processes."""

    communicator: Communicator
    store: Store
    history: History
    memory: Memory | None
    mesh: Mapping[str, int]

    def best(self, state: Mapping[str, Any], *, step: int | None = None) -> tuple[Manifest | None, bool]:
        """Load the best checkpoint into `state`. Return its manifest, or None if there is none, and whether it came from memory.

        Args:
            state: as for `Checkpoints.load`.
            step: the step of the requested checkpoint in the store; None: the newest.

        Raises:
            NoUsableCheckpointError: there are checkpoints, and all of them are broken.
            CheckpointError: the checkpoint is of another model.
            StoreError: the store cannot be read.
        """
        common = self._in_memory()
        stored, in_memory, marks = self.communicator.run_on_rank0(
            lambda: (
                self.history.usable(),
                self.history.counting(common),
                {claim.attempt: claim.mark for claim in self.history.claims()},
            )
        )
        stored = [name for name in stored if step in (None, name.step)]
        newest = stored[0].step if stored else 0
        for name in in_memory:
            if name.step >= newest and (found := self._recalled(state, name, marks)):
                return found, True
        return self._loaded(state, stored), False

    def _in_memory(self) -> list[Name]:
        """Return the checkpoints in memory of which all processes have their part."""
        names = self.communicator.gather(self.memory.names() if self.memory else [])
        return [*set(names[0]).intersection(*names)]

    def _recalled(self, state: Mapping[str, Any], name: Name, marks: Mapping[int, str]) -> Manifest | None:
        mine: list[tuple[Manifest, dict[str, Any]]] = []
        try:
            self.communicator.run_on_all(lambda: mine.append(self._read(name, marks)))
            # All have their part. Reading the state may be a collective, so not before.
            ((manifest, saved),) = mine
            target = self._asked_for(state, [*keys_of(saved)])
            self.communicator.run_on_all(lambda: fits(target, saved))
        except RankFailedError as error:
            self._pass_over(name, f"in memory {error}")
            return None
        put(target, saved)
        _given(state, target)
        return manifest

    def _asked_for(self, state: Mapping[str, Any], keys: list[str]) -> dict[str, Any]:
        """Return what can be loaded from a checkpoint with these keys. Raises RankFailedError if it fails on a process."""
        made: list[dict[str, Any]] = []
        self.communicator.run_on_all(lambda: made.append(plain(state, keys)))
        return made[0]

    def _read(self, name: Name, marks: Mapping[int, str]) -> tuple[Manifest, dict[str, Any]]:
        if self.memory is None:
            raise CorruptCheckpointError("this process keeps no checkpoints in memory")
        manifest, saved = self.memory.read(name, marks)
        made, here = (manifest.world_size, dict(manifest.mesh)), (self.communicator.world_size, dict(self.mesh))
        if made != here:
            raise CorruptCheckpointError(
                f"it is of {made[0]} processes, mesh {made[1]}, and these are {here[0]}, mesh {here[1]}"
            )
        return manifest, saved

    def _loaded(self, state: Mapping[str, Any], names: list[Name]) -> Manifest | None:
        wrong: list[str] = []
        for name in names:
            try:
                manifest, contents = self._verified(name)
            except CorruptCheckpointError as error:
                wrong.append(f"{name}: {error}")
                self._pass_over(name, str(error))
                continue
            try:
                self._filled(state, manifest, contents)
            except (Exception, CheckpointException) as error:
                raise CheckpointError(
                    f"checkpoint {name} cannot be loaded into this program: {reason(error)}"
                ) from error
            return manifest
        if self.communicator.run_on_rank0(self.history.has_any):
            raise NoUsableCheckpointError(
                f"no checkpoint in {self.store.url} is usable ({'; '.join(wrong) or 'the last one is missing'}): restore one, or start in "
                "another folder"
            )
        return None

    def _filled(self, state: Mapping[str, Any], manifest: Manifest, contents: Mapping[str, bytearray]) -> None:
        source = Reader(self.store, str(manifest.name), manifest.files, contents)
        keys = self.communicator.run_on_rank0(lambda: [*source.read_metadata().state_dict_metadata])
        target = self._asked_for(state, keys)
        dcp.load(target, storage_reader=source, planner=PlainLoadPlanner(), process_group=self.communicator.group)
        _given(state, target)

    def _verified(self, name: Name) -> tuple[Manifest, dict[str, bytearray]]:
        """Verify all files. Return the contents of those that this process probably needs: they are not read again.

        Raises:
            CorruptCheckpointError: a file is missing or changed.
            StoreError: the store does not answer.
        """
        manifest = self.communicator.run_on_rank0(lambda: self.history.listed(name))
        rank, world_size = self.communicator.rank, self.communicator.world_size
        # Each process reads its share of the files. In the same layout that is what it wrote.
        mine = readers(sorted(manifest.files), world_size)[rank]
        own_layout = (manifest.world_size, dict(manifest.mesh)) == (world_size, dict(self.mesh))
        size = sum(manifest.files[path].size for path in mine)
        contents: dict[str, bytearray] = {}
        try:
            self.communicator.run_on_all(
                lambda: contents.update(verify(self.store, manifest, mine, keep=own_layout and has_room(size)))
            )
        except RankFailedError as error:
            raise (CorruptCheckpointError if error.kinds == {"CorruptCheckpointError"} else StoreError)(
                str(error)
            ) from None
        return manifest, contents

    def _pass_over(self, name: Name, why: str) -> None:
        if self.communicator.rank == 0:
            logger.warning("skipped checkpoint %s: %s", name, why)


def readers(files: Sequence[str], world_size: int) -> list[list[str]]:
    """Return the files that each rank verifies. torch names a file by the rank that wrote it; other files are dealt out in turn."""
    found: list[list[str]] = [[] for _ in range(world_size)]
    for number, path in enumerate(files):
        written_by = WRITER.match(path)
        found[(int(written_by[1]) if written_by else number) % world_size].append(path)
    return found


def has_room(size: int) -> bool:
    """Return whether this process may keep so many bytes of a checkpoint while it loads it. All processes of the pod do the same."""
    memory = host_memory()
    return memory is None or size * ProcessInfo.of(os.environ).local_world_size <= memory.usable


def reason(error: BaseException) -> str:
    """Return the first line of torch's error, which otherwise is a page with each rank's traceback."""
    if isinstance(error, CheckpointException):
        rank, (first, _) = min(error.failures.items())
        return f"rank {rank}: {first_line(first)}"
    return first_line(error)


def _given(state: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    """Load the objects. In state dicts, tensors and nested values are filled in already."""
    for name, value in state.items():
        if isinstance(value, Stateful):
            value.load_state_dict(found[name])
