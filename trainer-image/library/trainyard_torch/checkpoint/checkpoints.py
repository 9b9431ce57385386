"""The checkpoints of a training, as its program uses them: load the best, save when it is due, while the training goes on."""

from __future__ import annotations

import logging
import os
import time
from typing import TYPE_CHECKING, Any

from trainyard_torch.checkpoint.history import History, LeftBehindError
from trainyard_torch.checkpoint.lineage import Incarnation
from trainyard_torch.checkpoint.manifest import Manifest, Name
from trainyard_torch.checkpoint.memory import Memory
from trainyard_torch.checkpoint.outcome import Outcome, agreed
from trainyard_torch.checkpoint.pace import Pace, Plan, Tier
from trainyard_torch.checkpoint.ranks import FailedElsewhereError, Ranks
from trainyard_torch.checkpoint.restoring import NotStoredError, Restoring
from trainyard_torch.checkpoint.saving import Saving
from trainyard_torch.checkpoint.state import plain, staged
from trainyard_torch.checkpoint.store import Store
from trainyard_torch.checkpoint.streams import mend
from trainyard_torch.checkpoint.writing import Writing

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
        plan: when they are made, which stay, and how long the store is waited for.
        mesh: how the processes are laid out: `training.mesh`. What is in memory is taken up in the same layout alone.
        who: which start of which job this is, so that a process that was left behind writes no more; by default what the operator says.
        options: for fsspec's file system.

    Attributes:
        url: the folder.
        attempt: the number of this attempt in the folder, from 1 on; 0 before `load`.
        newest: the checkpoint in the store that was made last, or that `load` found. Rank 0 alone knows what was made.
        observers: called on rank 0, in a thread, with each one that is stored as a whole and with `url`. They must not raise.
        failures: how many checkpoints could not be stored since this process began.

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
        self._store = Store(url, patience=self._plan.operation_seconds, **options)
        # Where one process waits for its thread to the last moment, the others wait for its word; torch has half an hour.
        self._main = Ranks(max(1800.0, 2 * self._plan.patience))
        self._background = Ranks(self._plan.patience)
        self._history = History(self._store, who or Incarnation.of(os.environ))
        self._memory = Memory(self._plan.folder, url, self._main.rank) if self._plan.memory else None
        self.url, self.attempt, self._mark = self._store.url, 0, ""
        self.newest: Manifest | None = None
        self.observers: list[Callable[[Manifest, str], None]] = []
        self._pending: Saving | None = None
        self._pace = Pace(self._plan, time.monotonic())
        self._slow = self._forgets = False
        self._made, self._tier = -1, Tier.MEMORY
        self._furthest = 0
        self._given_up = -1
        self.failures = 0
        mend()

    @property
    def plan(self) -> Plan:
        """When they are made, and which are kept."""
        return self._plan

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
        self._pace.began(*past, time.monotonic(), manifest.step if manifest else 0)
        if self._memory:
            self._clear(self._memory, base if remembered else None)
        self.newest = manifest
        self._furthest = manifest.step if manifest else 0
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
        self._main.tell(0 if answer else self._wished(step + 1))
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
        """Save what `state` is now. Comes back as soon as it is copied; the rest happens beside the training. A step that is saved is not again.

        A checkpoint that could not be written is logged and counted, and the training goes on; the next one is tried when it is due. One that
        is still being written is waited for first, and one that hangs is given up: after `Plan.patience` seconds at most.

        Args:
            step: the last step that is in it.
            state: as for `load`, which has to come before.
            data: where the data stands (`Batches.state`).
            metrics: numbers by which checkpoints are compared; what is None is not known, and left out.
            tier: where it goes. What is for the memory alone is left out for a while after that has failed.
            wait: come back when it is stored; needed before the program ends.

        Raises:
            NotStoredError: only with `wait`: it could not be written.
            LeftBehindError: a later attempt has begun, now or when the last one was written: this process is to end.
            RuntimeError: `load` was not called.
            ValueError: it is for the memory alone, and the plan keeps none there; a metric is no number; or there is one of a later step,
                from which the next start would go on.
        """
        if not self.attempt:
            raise RuntimeError("load() comes before save(): it says what this attempt goes on from")
        if tier is Tier.MEMORY and self._memory is None:
            raise ValueError("tier: nothing is kept in memory: say when, by Plan(memory=Due(…)), or take Tier.STORE")
        if step < self._furthest:
            raise ValueError(
                f"step must be from {self._furthest} on, where this training stands already, and is {step}: go on from the step of the manifest "
                "that load() returns"
            )
        self._furthest = step
        compared = _numbers(metrics or {})
        began = time.monotonic()
        self._finish_last()
        if self._made == step and tier <= self._tier:
            # It is stored. A second time, it would for a moment be neither.
            return
        if self._given_up == step:
            # Something of it may still be on its way, and would come between the files of the second.
            if wait:
                raise NotStoredError(f"the checkpoint of step {step} was given up, and is not tried again")
            return
        remember = self._memory is not None and (not self._pace.pauses(step) or (wait and tier is Tier.MEMORY))
        if tier is Tier.MEMORY and not remember:
            return
        manifest = Manifest(step, self.attempt, self._main.world, self._mesh, dict(data or {}), compared, time.time())
        memory = self._memory if remember else None
        state_now, plan = staged(plain(state)), self._plan
        writing = Writing(
            self._background,
            self._store,
            self._history,
            plan.keep,
            memory,
            self._mark,
            manifest,
            state_now,
            tier,
            self._stored,
        )
        self._pending = Saving(writing, self._store, seconds=plan.save_seconds, patience=plan.patience)
        self._made, self._tier = step, tier
        self._pace.made(tier, step, began=began, now=time.monotonic())
        self._slow = False
        if wait:
            self._finish_last(strict=True)

    def close(self) -> None:
        """Wait until the last one is stored. Raises as `save` with `wait` does."""
        self._finish_last(strict=True)

    def _claimed(self, base: Name | None) -> tuple[int, str, tuple[float, int]]:
        self._history.claim(base)
        return self._history.attempt, self._history.mark, self._history.past()

    def _clear(self, memory: Memory, name: Name | None) -> None:
        """In memory, only this one is needed any more."""
        try:
            self._main.each(lambda: memory.keep(name))
        except FailedElsewhereError as error:
            self._note_memory(Outcome(forgotten=str(error)))

    def _wished(self, step: int) -> int:
        """On rank 0 it counts."""
        now = time.monotonic()
        if self._pending is None or self._pending.done():
            return self._pace.by(now, step) or 0
        if self._pace.since(now) > SLOW_SECONDS and not self._slow:
            self._slow = True
            self._say(
                logging.WARNING, f"the checkpoint of step {self._pace.step} is still being written, after 10 minutes"
            )
        return 0

    def _stored(self, manifest: Manifest) -> None:
        """On rank 0, in the thread of the checkpoint."""
        self.newest = manifest
        for tell in self.observers:
            tell(manifest, self.url)

    def _finish_last(self, *, strict: bool = False) -> None:
        pending, self._pending = self._pending, None
        if pending is None:
            return
        # All have to take it for the same: what is saved next, and by which group, hangs on it.
        outcome = agreed(self._main.gather(pending.outcome()))
        if outcome.broken:
            background, self._background = self._background, Ranks(self._plan.patience)
            if pending.ended():
                background.close()
        if outcome.behind:
            raise LeftBehindError(outcome.behind)
        self._note_memory(outcome)
        wrong = outcome.wrong or (outcome.forgotten if self._tier is Tier.MEMORY else "")
        if not wrong:
            return
        self._made = -1
        if outcome.silent:
            self._given_up = self._pace.step
        self.failures += bool(outcome.wrong)
        text = f"the checkpoint of step {self._pace.step} was not written: {wrong}"
        if strict:
            raise NotStoredError(text)
        if outcome.wrong:
            self._say(logging.WARNING, f"{text}; failed so far: {self.failures}; the training goes on")

    def _note_memory(self, outcome: Outcome) -> None:
        if outcome.forgotten:
            self._pace.forgot()
            if not self._forgets:
                self._say(
                    logging.WARNING,
                    f"checkpoints are not kept in memory for now: {outcome.forgotten}; it is tried again, more and more seldom",
                )
        elif outcome.remembered:
            self._pace.remembered()
            if self._forgets:
                self._say(logging.INFO, "checkpoints are kept in memory again")
        self._forgets = bool(outcome.forgotten) or (self._forgets and not outcome.remembered)

    def _say(self, level: int, text: str) -> None:
        if self._main.rank == 0:
            logger.log(level, text)


def _numbers(metrics: Mapping[str, float | None]) -> dict[str, float]:
    """As they can be written down. Raises ValueError: one is no number."""
    found: dict[str, float] = {}
    for name, value in metrics.items():
        if value is not None:
            try:
                found[name] = float(value)
            except (TypeError, ValueError, RuntimeError) as error:
                raise ValueError(f"metrics: {name} must be a number, and is {value!r}") from error
    return found
