"""What the thread beside the training does with a checkpoint: into memory, into the store, and away with what is not needed any more."""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner

from trainyard_torch.checkpoint.manifest import NAME, BrokenError
from trainyard_torch.checkpoint.pace import Tier
from trainyard_torch.checkpoint.ranks import FailedElsewhereError
from trainyard_torch.checkpoint.state import local
from trainyard_torch.checkpoint.store import StoreError
from trainyard_torch.checkpoint.streams import writer

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainyard_torch.checkpoint.history import History
    from trainyard_torch.checkpoint.lineage import Keep
    from trainyard_torch.checkpoint.manifest import Manifest
    from trainyard_torch.checkpoint.memory import Memory
    from trainyard_torch.checkpoint.ranks import Ranks
    from trainyard_torch.checkpoint.saving import Saving
    from trainyard_torch.checkpoint.store import Store

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Writing:
    """One checkpoint, and all that its thread uses: where that is left behind, the training goes on with other things.

    Attributes:
        ranks: by which the threads of all processes speak.
        store: where it goes, with `history` on rank 0.
        history: of the store.
        keep: what stays there.
        memory: where it is kept too; None: nowhere.
        mark: that of the attempt's claim.
        manifest: what it is of.
        state: a copy on the host, as `staged` makes it.
        tier: how far it goes.
        stored: called on rank 0 when it is in the store as a whole.
    """

    ranks: Ranks
    store: Store
    history: History
    keep: Keep
    memory: Memory | None
    mark: str
    manifest: Manifest
    state: dict[str, Any]
    tier: Tier
    stored: Callable[[Manifest], None]

    def __call__(self, saving: Saving) -> None:
        """Do it, on all processes at once.

        Raises:
            CheckpointException, StoreError: it could not be written; all processes know.
            LeftBehindError: a later attempt has begun.
        """
        if self.memory:
            self._remember(self.memory, saving)
        if self.tier < Tier.STORE:
            return
        folder, unanswered = str(self.manifest.name), self.store.unanswered
        out, streams = writer(self.store, folder, saving.check)
        # Of what all have, rank 0's is taken, whole: where ranks differ by intent or by a running mean, a mixture would be nobody's.
        planner = DefaultSavePlanner(dedup_save_to_lowest_rank=True)
        try:
            dcp.save(self.state, storage_writer=out, planner=planner, process_group=self.ranks.group)
        except CheckpointException:
            # All know of it, and write no more.
            self.ranks.first(lambda: self._drop(unanswered))
            raise
        files = {path.removeprefix(f"{folder}/"): file for path, file in streams.written.items()}
        every = {path: file for found in self.ranks.gather(files) for path, file in found.items()}

        def commit() -> None:
            saving.check()
            whole = self.manifest.of(every)
            try:
                self.history.commit(whole)
            except StoreError:
                self._drop(unanswered)
                raise
            self.stored(whole)

        self.ranks.first(commit)
        self.ranks.first(self._tidy)

    def _remember(self, memory: Memory, saving: Saving) -> None:
        try:
            self.ranks.each(lambda: memory.write(self.manifest, self.mark, local(self.state)))
            # Not before all have theirs.
            self.ranks.each(lambda: memory.keep(self.manifest.name))
        except FailedElsewhereError as error:
            saving.forgotten = str(error)
        else:
            saving.remembered = True

    def _drop(self, unanswered: int) -> None:
        """Give back the room of one that has failed: where the store is full, no later one would find any.

        Not where the store does not answer, which would be waited for a second time. `tidy` comes back to what stays.
        """
        folder = str(self.manifest.name)
        with suppress(StoreError):
            if self.store.unanswered == unanswered and self.store.read(f"{folder}/{NAME}") is None:
                self.store.remove(folder)

    def _tidy(self) -> None:
        try:
            self.history.tidy(self.keep)
        except (StoreError, BrokenError) as error:
            logger.warning("a checkpoint that is not needed any more stays: %s", error)
