"""The checkpoints of a training, as its program uses them: load the best, save when it is due, while the training goes on."""

from __future__ import annotations

import logging
import os
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner

from trainyard_torch.checkpoint.history import History, LeftBehindError
from trainyard_torch.checkpoint.lineage import Incarnation
from trainyard_torch.checkpoint.manifest import Manifest, Name
from trainyard_torch.checkpoint.memory import Memory
from trainyard_torch.checkpoint.pace import Pace, Plan, Tier
from trainyard_torch.checkpoint.ranks import FailedElsewhereError, Ranks
from trainyard_torch.checkpoint.restoring import CheckpointError, Restoring, reason
from trainyard_torch.checkpoint.state import local, plain, staged
from trainyard_torch.checkpoint.store import Store, StoreError
from trainyard_torch.checkpoint.streams import mend, writer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch.distributed.device_mesh import DeviceMesh


logger = logging.getLogger(__name__)
SLOW_SECONDS = 600.0
"""A checkpoint that takes longer to be stored is told of."""


class Checkpoints:
    """To be made, and its methods to be called, by all processes of the training at the same time.

    Args:
        url: the folder of all checkpoints of this training: a path that all processes share, or `s3://bucket/folder` and the like.
        plan: when they are made, and which stay.
        mesh: how the processes are laid out: `training.mesh`. What is in memory is taken up in the same layout alone.
        who: which start of which job this is, so that a process that was left behind writes no more; by default what the operator says.
        options: for fsspec's file system.

    Attributes:
        url: the folder.
        attempt: the number of this attempt in the folder, from 1 on; 0 before `load`.
        newest: the checkpoint in the store that was made last, or that `load` found. Rank 0 alone knows what was made.
        observers: called on rank 0, in a thread, with each one that is stored as a whole and with `url`. They must not raise.

    Raises:
        StoreError: there is no such store.
        ValueError: TRAINYARD_ATTEMPT is no number.
    """

    def __init__(
        self,
        url: str,
        *,
        plan: Plan | None = None,
        mesh: DeviceMesh | None = None,
        who: Incarnation | None = None,
        **options: object,
    ) -> None:
        self._plan = plan or Plan()
        self._mesh = dict(zip(mesh.mesh_dim_names or (), mesh.shape, strict=False)) if mesh else {}
        self._store = Store(url, **options)
        self._main, self._background = Ranks(), Ranks()
        self._history = History(self._store, who or Incarnation.of(os.environ))
        self._memory = Memory(self._plan.folder, url, self._main.rank) if self._plan.memory else None
        self.url, self.attempt, self._mark = self._store.url, 0, ""
        self.newest: Manifest | None = None
        self.observers: list[Callable[[Manifest, str], None]] = []
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._pending: Future[None] | None = None
        self._pace = Pace(self._plan, time.monotonic())
        self._slow = False
        self._made, self._tier = -1, Tier.MEMORY
        mend()

    @property
    def stall(self) -> float:
        """Seconds for which the training stood still for the last checkpoint; 0 before the first."""
        return self._pace.stall

    def load(self, state: Mapping[str, Any]) -> Manifest | None:
        """Put the best checkpoint that is whole into `state`, and begin this attempt from there. None: there is none yet.

        Args:
            state: state dicts, or objects with `state_dict` and `load_state_dict`, by name; as given to `save`. Tensors are filled in
                place, whatever world size or parallelism they were saved from.

        Raises:
            NoneWholeError: there are checkpoints, and all of them are broken.
            CheckpointError: the checkpoint is of another model.
            LeftBehindError: a later attempt has begun already.
            StoreError: the store cannot be read.
        """
        self._main.first(self._history.begin)
        restoring = Restoring(self._main, self._store, self._history, self._memory, self._mesh)
        manifest, remembered = restoring.best(state)
        base = manifest.name if manifest else None
        self.attempt, self._mark, past = self._main.first(lambda: self._claimed(base))
        self._pace.began(*past, time.monotonic())
        if self._memory:
            self._memory.keep(base if remembered else None)
        self.newest = manifest
        if manifest:
            where = "memory" if remembered else self._store.url
            self._say(logging.INFO, f"the training goes on from step {manifest.step}, checkpoint {base} in {where}")
        return manifest

    def due(self, step: int) -> Tier | None:
        """Whether a checkpoint is to be saved after this step, and where: the same answer on all. To be asked after each step.

        By time, none is due while the last one is still being written; rank 0 decides a step ahead, so that nobody waits for the
        answer. By the number of the step it is due in any case, and `save` waits for the last one.
        """
        answer = max(self._main.told(), self._pace.at(step) or 0)
        # What is saved now is under way then.
        self._main.tell(0 if answer else self._wished())
        return Tier(answer) if answer else None

    def save(
        self,
        step: int,
        state: Mapping[str, Any],
        *,
        data: Mapping[str, int] | None = None,
        metrics: Mapping[str, float] | None = None,
        tier: Tier = Tier.STORE,
        wait: bool = False,
    ) -> None:
        """Save what `state` is now. Comes back as soon as it is copied; the rest happens beside the training. A step that is saved is not again.

        A checkpoint that could not be written is logged, and the training goes on; the next one is tried when it is due.

        Args:
            step: the last step that is in it.
            state: as for `load`, which has to come before.
            data: where the data stands (`Batches.state`).
            metrics: numbers by which checkpoints are compared.
            tier: where it goes.
            wait: come back when it is stored; needed before the program ends.

        Raises:
            CheckpointError: only with `wait`: it could not be written.
            LeftBehindError: a later attempt has begun, now or when the last one was written: this process is to end.
            RuntimeError: `load` was not called.
        """
        if not self.attempt:
            raise RuntimeError("load() comes before save(): it says what this attempt goes on from")
        began = time.monotonic()
        self._finish_last()
        if self._made == step and tier <= self._tier:
            # It is stored. A second time, it would for a moment be neither.
            return
        manifest = Manifest(
            step, self.attempt, self._main.world, self._mesh, dict(data or {}), dict(metrics or {}), time.time()
        )
        self._pending = self._worker.submit(self._write, manifest, staged(plain(state)), tier)
        self._made, self._tier = step, tier
        self._pace.made(tier, step, began=began, now=time.monotonic())
        self._slow = False
        if wait:
            self._finish_last(strict=True)

    def close(self) -> None:
        """Wait until the last one is stored. Raises as `save` with `wait` does."""
        try:
            self._finish_last(strict=True)
        finally:
            self._worker.shutdown()

    def _claimed(self, base: Name | None) -> tuple[int, str, tuple[float, int]]:
        self._history.claim(base)
        return self._history.attempt, self._history.mark, self._history.past()

    def _wished(self) -> int:
        """On rank 0 it counts."""
        now = time.monotonic()
        if self._pending is None or self._pending.done():
            return self._pace.by(now) or 0
        if self._pace.since(now) > SLOW_SECONDS and not self._slow:
            self._slow = True
            self._say(
                logging.WARNING, f"the checkpoint of step {self._pace.step} is still being written, after 10 minutes"
            )
        return 0

    def _write(self, manifest: Manifest, state: dict[str, Any], tier: Tier) -> None:
        """In the thread beside the training, on all processes at once."""
        ranks, folder = self._background, str(manifest.name)
        if self._memory:
            self._remember(self._memory, manifest, state)
        if tier < Tier.STORE:
            return
        out, streams = writer(self._store, folder)
        # Of what all have, rank 0's is taken, whole: where ranks differ by intent or by a running mean, a mixture would be nobody's.
        planner = DefaultSavePlanner(dedup_save_to_lowest_rank=True)
        dcp.save(state, storage_writer=out, planner=planner, process_group=ranks.group)
        files = {path.removeprefix(f"{folder}/"): file for path, file in streams.written.items()}
        every = {path: file for found in ranks.gather(files) for path, file in found.items()}
        ranks.first(lambda: self._commit(manifest.of(every)))
        ranks.first(self._tidy)

    def _commit(self, manifest: Manifest) -> None:
        self._history.commit(manifest)
        self.newest = manifest
        for tell in self.observers:
            tell(manifest, self.url)

    def _remember(self, memory: Memory, manifest: Manifest, state: dict[str, Any]) -> None:
        try:
            self._background.each(lambda: memory.write(manifest, self._mark, local(state)))
            # Not before all have theirs.
            self._background.each(lambda: memory.keep(manifest.name))
        except FailedElsewhereError as error:
            self._say(logging.WARNING, f"checkpoints are kept in memory no more: {error}")
            self._memory = None

    def _tidy(self) -> None:
        try:
            self._history.tidy(self._plan.keep)
        except StoreError as error:
            self._say(logging.WARNING, f"a checkpoint that is not needed any more stays: {error}")

    def _finish_last(self, *, strict: bool = False) -> None:
        pending, self._pending = self._pending, None
        if pending is None:
            return
        try:
            pending.result()
        except LeftBehindError:
            raise
        except (Exception, CheckpointException) as error:
            self._made = -1
            text = f"the checkpoint of step {self._pace.step} was not written: {reason(error)}"
            if strict:
                raise CheckpointError(text) from error
            self._say(logging.WARNING, f"{text}; the training goes on")

    def _say(self, level: int, text: str) -> None:
        if self._main.rank == 0:
            logger.log(level, text)
