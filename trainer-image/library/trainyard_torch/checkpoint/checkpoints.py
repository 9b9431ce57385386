"""Load the best checkpoint, and save checkpoints when due, without blocking the training."""

from __future__ import annotations

import logging
import os
import time
from typing import TYPE_CHECKING, Any

from trainyard_torch.checkpoint.background_save import BackgroundSave
from trainyard_torch.checkpoint.communicator import Communicator, RankFailedError
from trainyard_torch.checkpoint.history import History, StaleAttemptError
from trainyard_torch.checkpoint.lineage import JobAttempt
from trainyard_torch.checkpoint.loader import CheckpointLoader, CheckpointSaveError
from trainyard_torch.checkpoint.manifest import Manifest, Name
from trainyard_torch.checkpoint.memory import Memory
from trainyard_torch.checkpoint.outcome import Outcome, agreed
from trainyard_torch.checkpoint.plain_values import check_loadable
from trainyard_torch.checkpoint.policy import CheckpointPolicy, SaveSchedule, Tier
from trainyard_torch.checkpoint.save_planner import SavePlanner
from trainyard_torch.checkpoint.staging import StagingBuffer
from trainyard_torch.checkpoint.state import plain
from trainyard_torch.checkpoint.store import Store
from trainyard_torch.checkpoint.streams import patch_torch_checkpoint
from trainyard_torch.checkpoint.writer import CheckpointWriter
from trainyard_torch.checkpoint.writer_process import WriterProcess
from trainyard_torch.process_info import ProcessInfo

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch.distributed.device_mesh import DeviceMesh

logger = logging.getLogger(__name__)
SLOW_SECONDS = 600.0
"""A checkpoint that takes longer to be stored is logged once."""


class Checkpoints:
    """The checkpoints of a training. All processes create it and call its methods at the same time.

    Args:
        url: the folder of all checkpoints of this training: a path that all processes share, or `s3://bucket/folder` and the like.
        policy: when checkpoints are made, which are kept, and the timeouts of the store.
        mesh: the layout of the processes: `training.mesh`. Checkpoints in memory can only be loaded in the same layout.
        job_attempt: the job and attempt of this process, so that a stale process cannot commit. By default from the operator's variables.
        options: options for fsspec's file system.

    Attributes:
        url: the folder.
        attempt: the number of this attempt in the folder, at least 1; 0 before `load`.
        newest: the newest checkpoint in the store, made or loaded. Only rank 0 knows of new ones.
        observers: functions that a background thread of rank 0 calls with the manifest of each committed checkpoint and `url`. They must
            not raise.
        failures: the number of checkpoints that could not be stored since this process started.

    Raises:
        StoreError: there is no such store.
        UnsafeTorchError: torch is older than 2.6.
        ValueError: TRAINYARD_ATTEMPT is not a number. Or the folder is memory of this process, and another process is to write.
    """

    def __init__(
        self,
        url: str,
        *,
        policy: CheckpointPolicy | None = None,
        mesh: DeviceMesh | None = None,
        job_attempt: JobAttempt | None = None,
        **options: object,
    ) -> None:
        self._policy = policy or CheckpointPolicy()
        self._mesh = dict(zip(mesh.mesh_dim_names or (), mesh.shape, strict=False)) if mesh else {}
        self._store = Store(url, timeout_seconds=self._policy.operation_timeout_seconds, **options)
        if self._policy.process and self._store.in_this_process:
            raise ValueError(
                f"{self._store.url} is memory of this process: use a folder, or CheckpointPolicy(process=False)"
            )
        # One process may wait for its thread up to the limit, while the others wait for it. torch's default is half an hour.
        self._communicator = Communicator(max(1800.0, 2 * self._policy.give_up_seconds))
        self._background = Communicator(self._policy.give_up_seconds, threaded=True)
        self._history = History(self._store, job_attempt or JobAttempt.of(os.environ))
        self._memory: Memory | None = None
        if self._policy.memory:
            processes = ProcessInfo.of(os.environ).local_world_size
            self._memory = Memory(self._policy.memory_dir, url, self._communicator.rank, processes)
        self.url, self.attempt, self._mark = self._store.url, 0, ""
        self.newest: Manifest | None = None
        self.observers: list[Callable[[Manifest, str], None]] = []
        self._pending: BackgroundSave | None = None
        self._planner = SavePlanner()
        self._renew_staging()
        self._schedule = SaveSchedule(self._policy, time.monotonic())
        self._slow = self._forgets = False
        self._made, self._tier = -1, Tier.MEMORY
        self._furthest = 0
        self._given_up = -1
        self.failures = 0
        patch_torch_checkpoint()

    @property
    def policy(self) -> CheckpointPolicy:
        """When checkpoints are made, and which are kept."""
        return self._policy

    @property
    def stall_seconds(self) -> float:
        """The seconds for which the last checkpoint blocked training; 0 before the first."""
        return self._schedule.stall_seconds

    def load(self, state: Mapping[str, Any]) -> Manifest | None:
        """Load the best usable checkpoint into `state`, and start this attempt from there. Return None if there is no checkpoint yet.

        Args:
            state: state dicts, or objects with `state_dict` and `load_state_dict`, by name; as passed to `save`. Tensors are filled in place,
                from any world size or parallelism.

        Raises:
            NoUsableCheckpointError: there are checkpoints, and all of them are broken.
            CheckpointError: the checkpoint is of another model.
            StaleAttemptError: a later attempt has started already.
            StoreError: the store cannot be read.
        """
        self._communicator.run_on_rank0(self._history.begin)
        restoring = CheckpointLoader(self._communicator, self._store, self._history, self._memory, self._mesh)
        manifest, in_memory = restoring.best(state)
        base = manifest.name if manifest else None
        self.attempt, self._mark, past = self._communicator.run_on_rank0(lambda: self._claimed(base))
        self._schedule.began(*past, time.monotonic(), manifest.step if manifest else 0)
        if self._memory:
            self._clear_memory(self._memory, base if in_memory else None)
        self.newest = manifest
        self._furthest = manifest.step if manifest else 0
        if manifest:
            where = "memory" if in_memory else self._store.url
            self._log(logging.INFO, f"resuming from step {manifest.step}: checkpoint {base} in {where}")
        return manifest

    def should_save(self, step: int) -> Tier | None:
        """Return whether a checkpoint is due after this step, and where: the same answer on all processes. Call it after each step.

        A time interval makes no checkpoint due while the last one is being written. Rank 0 decides one step ahead, so that no process waits for the
        answer. A step interval always makes it due, and `save` waits for the last one.
        """
        answer = max(self._communicator.poll(), self._schedule.due_at_step(step) or 0)
        # The broadcast of this save's interval has started.
        self._communicator.broadcast_async(0 if answer else self._due_next(step + 1))
        return Tier(answer) if answer else None

    def save(
        self,
        step: int,
        state: Mapping[str, Any],
        *,
        data: Mapping[str, int] | None = None,
        metrics: Mapping[str, float | None] | None = None,
        tier: Tier = Tier.STORE,
        wait: bool = False,
    ) -> None:
        """Save the current `state`. Return as soon as it is copied; the rest happens in the background. A saved step is not saved twice.

        A checkpoint that could not be written is logged and counted, and training continues; the next one is tried when due. A pending
        checkpoint is waited for first, and abandoned after `CheckpointPolicy.give_up_seconds` seconds if it hangs.

        Args:
            step: the last step in the checkpoint.
            state: as for `load`, which must be called first.
            data: the position in the data (`Batches.state`).
            metrics: numbers by which checkpoints are compared. None values are unknown, and omitted.
            tier: where the checkpoint goes. After a failure, checkpoints for memory alone are skipped for a while.
            wait: return only when the checkpoint is stored; needed before the program exits.

        Raises:
            CheckpointSaveError: only with `wait`: it could not be written.
            StaleAttemptError: a later attempt has started, now or while the last one was written: this process must exit.
            RuntimeError: `load` was not called.
            UnsafeValueError: `state` has an object of a class that would not be loaded again.
            ValueError: `tier` is MEMORY and the policy keeps none there; or a metric is not a number. Or there is a
                    checkpoint of a later step, from which the next start would continue.
        """
        self._check_save(step, tier)
        compared = _numbers(metrics or {})
        self._furthest = step
        began = time.monotonic()
        self._finish_last()
        if self._made == step and tier <= self._tier:
            # It is stored already. While it is replaced, there would be neither.
            return
        if self._given_up == step:
            # A part of it may still be written, and would mix with the files of a second attempt.
            if wait:
                raise CheckpointSaveError(f"the checkpoint of step {step} was abandoned, and is not tried again")
            return
        memory = self._memory_for(step, tier, wait=wait)
        if tier is Tier.MEMORY and memory is None:
            return
        manifest = Manifest(
            step, self.attempt, self._communicator.world_size, self._mesh, dict(data or {}), compared, time.time()
        )
        current = plain(state)
        check_loadable(current)
        self._start_save(manifest, self._staging.stage(current), tier, memory)
        self._made, self._tier = step, tier
        self._schedule.made(tier, step, began=began, now=time.monotonic())
        self._slow = False
        if wait:
            self._finish_last(strict=True)

    def agree(self, finite: bool) -> bool:  # noqa: FBT001 - the only argument
        """Return whether this is true on all processes. They call it at the same time, before `save`: all or none of them save."""
        return self._communicator.all_true(finite)

    def wait(self) -> None:
        """Wait until this process's part of the last checkpoint is written, or abandoned. Not a collective of the training threads."""
        if self._pending:
            self._pending.outcome()

    def close(self) -> None:
        """Wait until the last checkpoint is stored. Raises as `save` with `wait` does."""
        try:
            self._finish_last(strict=True)
        finally:
            if self._process:
                self._process.close()

    def _check_save(self, step: int, tier: Tier) -> None:
        """Raise RuntimeError or ValueError if this checkpoint may not be saved, as `save` documents."""
        if not self.attempt:
            raise RuntimeError("call load() before save(): it determines which checkpoint this attempt continues from")
        if tier is Tier.MEMORY and self._memory is None:
            raise ValueError(
                "tier is MEMORY, but the policy keeps no checkpoints in memory: set CheckpointPolicy(memory=SaveInterval(…)), or use Tier.STORE"
            )
        if step < self._furthest:
            raise ValueError(
                f"step must be from {self._furthest} on, which this training has already reached, not {step}: continue from the step of the manifest "
                "that load() returns"
            )

    def _memory_for(self, step: int, tier: Tier, *, wait: bool) -> Memory | None:
        """Return the memory tier if this checkpoint goes there: not during the pause after a failure, unless it is the last chance."""
        last_chance = wait and tier is Tier.MEMORY
        return self._memory if last_chance or not self._schedule.memory_paused(step) else None

    def _start_save(self, manifest: Manifest, state: dict[str, Any], tier: Tier, memory: Memory | None) -> None:
        writer = CheckpointWriter(
            self._background,
            self._planner,
            self._store,
            self._history,
            self._policy.keep,
            memory,
            self._mark,
            manifest,
            state,
            tier,
            self._stored,
            self._process,
        )
        self._pending = BackgroundSave(
            writer, self._store, seconds=self._policy.save_timeout_seconds, give_up_seconds=self._policy.give_up_seconds
        )

    def _claimed(self, base: Name | None) -> tuple[int, str, tuple[float, int]]:
        self._history.claim(base)
        return self._history.attempt, self._history.mark, self._history.past()

    def _clear_memory(self, memory: Memory, name: Name | None) -> None:
        """Remove all checkpoints in memory except this one."""
        try:
            self._communicator.run_on_all(lambda: memory.keep(name))
        except RankFailedError as error:
            self._record_memory_outcome(Outcome(memory_error=str(error)))

    def _due_next(self, step: int) -> int:
        """On rank 0, count the checkpoint."""
        now = time.monotonic()
        if self._pending is None or self._pending.done():
            return self._schedule.due_by_time(now, step) or 0
        if self._schedule.since(now) > SLOW_SECONDS and not self._slow:
            self._slow = True
            self._log(
                logging.WARNING,
                f"the checkpoint of step {self._schedule.step} is still being written, after 10 minutes",
            )
        return 0

    def _stored(self, manifest: Manifest) -> None:
        """On rank 0, in the thread of the checkpoint: call the observers."""
        self.newest = manifest
        for observe in self.observers:
            observe(manifest, self.url)

    def _finish_last(self, *, strict: bool = False) -> None:
        pending, self._pending = self._pending, None
        if pending is None:
            return
        # All processes must agree on the outcome: it decides what is saved next, and by which group.
        outcome = agreed(self._communicator.gather(self._outcome_of(pending)))
        if outcome.broken:
            background = self._background
            self._background = Communicator(self._policy.give_up_seconds, threaded=True)
            if pending.ended():
                background.close()
        if outcome.wrong:
            # Some ranks may have made a plan, and others not.
            self._planner = SavePlanner()
        if outcome.behind:
            raise StaleAttemptError(outcome.behind)
        self._record_memory_outcome(outcome)
        wrong = outcome.wrong or (outcome.memory_error if self._tier is Tier.MEMORY else "")
        if not wrong:
            return
        self._made = -1
        if outcome.silent:
            self._given_up = self._schedule.step
        self.failures += bool(outcome.wrong)
        text = f"the checkpoint of step {self._schedule.step} was not written: {wrong}"
        if strict:
            raise CheckpointSaveError(text)
        if outcome.wrong:
            self._log(logging.WARNING, f"{text}; failures so far: {self.failures}; training continues")

    def _outcome_of(self, pending: BackgroundSave) -> Outcome:
        outcome = pending.outcome()
        if pending.ended():
            self._staging.release()
        else:
            # The abandoned thread reads its copy as long as it lives.
            self._renew_staging()
        return outcome

    def _renew_staging(self) -> None:
        """Take new memory for copies of the state, and the process that reads it."""
        self._staging = StagingBuffer(shared=self._policy.process)
        self._process = WriterProcess(self._staging) if self._policy.process else None

    def _record_memory_outcome(self, outcome: Outcome) -> None:
        if outcome.memory_error:
            self._schedule.memory_failed()
            if not self._forgets:
                self._log(
                    logging.WARNING,
                    f"checkpoints are not kept in memory for now: {outcome.memory_error}; it is tried again, more and more seldom",
                )
        elif outcome.in_memory:
            self._schedule.memory_saved()
            if self._forgets:
                self._log(logging.INFO, "checkpoints are kept in memory again")
        self._forgets = bool(outcome.memory_error) or (self._forgets and not outcome.in_memory)

    def _log(self, level: int, text: str) -> None:
        if self._communicator.rank == 0:
            logger.log(level, text)


def _numbers(metrics: Mapping[str, float | None]) -> dict[str, float]:
    """Return the metrics as floats. Raises ValueError if one is not a number."""
    found: dict[str, float] = {}
    for name, value in metrics.items():
        if value is not None:
            try:
                found[name] = float(value)
            except (TypeError, ValueError, RuntimeError) as error:
                raise ValueError(f"metrics: {name} must be a number, got {value!r}") from error
    return found
