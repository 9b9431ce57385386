"""Write a checkpoint in the background thread: to memory, to the store, and remove the checkpoints that are no longer needed."""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

from trainyard_torch.checkpoint.communicator import RankFailedError
from trainyard_torch.checkpoint.manifest import NAME, CorruptCheckpointError
from trainyard_torch.checkpoint.policy import Tier
from trainyard_torch.checkpoint.state import local
from trainyard_torch.checkpoint.store import NoAnswerError, StoreError
from trainyard_torch.checkpoint.streams import without_crc32, writer
from trainyard_torch.checkpoint.writer_process import here

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainyard_torch.checkpoint.background_save import BackgroundSave
    from trainyard_torch.checkpoint.communicator import Communicator
    from trainyard_torch.checkpoint.history import History
    from trainyard_torch.checkpoint.lineage import Retention
    from trainyard_torch.checkpoint.manifest import Manifest
    from trainyard_torch.checkpoint.memory import Memory
    from trainyard_torch.checkpoint.save_planner import SavePlanner
    from trainyard_torch.checkpoint.store import Store
    from trainyard_torch.checkpoint.writer_process import Run, WriterProcess

T = TypeVar("T")
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class CheckpointWriter:
    """One checkpoint and everything that its thread uses. If the thread is abandoned, training continues with new objects.

    Attributes:
        communicator: the communicator of the threads of all processes.
        planner: the planner of the checkpoints before, if none has failed.
        store: the store.
        history: the checkpoints in the store, used on rank 0.
        keep: which checkpoints are kept in the store.
        memory: the checkpoints in memory; None: none.
        mark: the mark of the attempt's claim.
        manifest: the manifest of the checkpoint.
        state: a copy on the host, made by `StagingBuffer.stage`.
        tier: where the checkpoint goes.
        stored: called on rank 0 when the checkpoint is committed.
        process: the process that writes the files; None: the thread does.
    """

    communicator: Communicator
    planner: SavePlanner
    store: Store
    history: History
    keep: Retention
    memory: Memory | None
    mark: str
    manifest: Manifest
    state: dict[str, Any]
    tier: Tier
    stored: Callable[[Manifest], None]
    process: WriterProcess | None = None

    def __call__(self, saving: BackgroundSave) -> None:
        """Write the checkpoint, on all processes at once.

        Raises:
            CheckpointException, RankFailedError, StoreError: it could not be written; all processes know.
            StaleAttemptError: a later attempt has started.
        """
        if self.memory:
            self._remember(self.memory, saving)
        if self.tier < Tier.STORE:
            return
        folder, unanswered = str(self.manifest.name), self.store.unanswered
        out = writer(self.store, folder, saving.check, self._run(saving))
        is_coordinator = self.communicator.rank == 0
        unchanged = self.communicator.run_on_all(
            lambda: self.planner.unchanged(self.state, is_coordinator=is_coordinator)
        )
        self.planner.reuse = all(unchanged)
        try:
            with without_crc32():
                dcp.save(self.state, storage_writer=out, planner=self.planner, process_group=self.communicator.group)
        except CheckpointException:
            # All processes know, and write no more.
            self.communicator.run_on_rank0(lambda: self._drop(unanswered))
            raise
        finally:
            self.planner.release()
        files = {path.removeprefix(f"{folder}/"): file for path, file in out.streams.written.items()}
        every = {path: file for found in self.communicator.gather(files) for path, file in found.items()}

        def commit() -> None:
            saving.check()
            complete = self.manifest.of(every)
            try:
                self.history.commit(complete)
            except StoreError:
                self._drop(unanswered)
                raise
            self.stored(complete)

        self.communicator.run_on_rank0(commit)
        self.communicator.run_on_rank0(self._tidy)

    def _run(self, saving: BackgroundSave) -> Run:
        """Return how functions that write files are called."""
        process = self.process
        if process is None:
            return here

        def run(function: Callable[..., T], *arguments: object) -> T:
            try:
                return process.run(saving.check, function, *arguments)
            except NoAnswerError:
                # It was counted in the other process, which may still wait for the store.
                self.store.unanswered += 1
                process.close()
                raise

        return run

    def _remember(self, memory: Memory, saving: BackgroundSave) -> None:
        state = local(self.state)
        try:
            # Before any of them writes: what the others write would count as used.
            self.communicator.run_on_all(lambda: memory.reserve(state))
            self.communicator.run_on_all(lambda: memory.write(self.manifest, self.mark, state, self._run(saving)))
            # Not before all processes have theirs.
            self.communicator.run_on_all(lambda: memory.keep(self.manifest.name))
        except RankFailedError as error:
            saving.memory_error = str(error)
        else:
            saving.in_memory = True

    def _drop(self, unanswered: int) -> None:
        """Free the space of a failed checkpoint: if the store is full, no later one would fit otherwise.

        Skip it if the store does not answer, to avoid a second timeout. `tidy` removes the rest later.
        """
        folder = str(self.manifest.name)
        with suppress(StoreError):
            if self.store.unanswered == unanswered and self.store.read(f"{folder}/{NAME}") is None:
                self.store.remove(folder)

    def _tidy(self) -> None:
        try:
            self.history.tidy(self.keep)
        except (StoreError, CorruptCheckpointError) as error:
            logger.warning("a checkpoint that is not needed any more stays: %s", error)
