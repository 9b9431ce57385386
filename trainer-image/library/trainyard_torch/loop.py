"""Run a training: load data, step the optimizer, save checkpoints, report progress, and stop on request. The program has the model and its loss."""

from __future__ import annotations

import logging
import math
import time
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.fsdp import FSDPModule
from torch.nn import SyncBatchNorm

from trainyard_torch.checkpoint.policy import Tier
from trainyard_torch.checkpoint.train_state import TrainState
from trainyard_torch.export.record import Provenance
from trainyard_torch.garbage_collection import COLLECT_EVERY_STEPS, collected_every
from trainyard_torch.mesh import size
from trainyard_torch.monitoring.monitor import Monitor
from trainyard_torch.non_finite import NonFiniteError, StepGuard, all_finite
from trainyard_torch.parallel.clipping import GradientClipper
from trainyard_torch.parallel.data_parallel import Replicated
from trainyard_torch.parallel.gradients import GradientSync
from trainyard_torch.precision import Precision

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from torch import Tensor, nn
    from torch.optim import Optimizer

    from trainyard_torch.checkpoint.checkpoints import Checkpoints
    from trainyard_torch.context import Training
    from trainyard_torch.data.batch_builder import LoadedMicroBatch
    from trainyard_torch.data.loader import Loader
    from trainyard_torch.non_finite import NonFinitePolicy
    from trainyard_torch.optim.schedule import LRSchedule
    from trainyard_torch.tracking.tracking import Tracking

logger = logging.getLogger(__name__)


class Step:
    """One step: iterate over it for its micro-batches, and call `backward` with the loss of each.

    Attributes:
        number: the number of the step, at least 1.
        weight: the factor for the mean loss of the current micro-batch, for callers that compute gradients without `backward`.
        loss: the mean loss of this process's samples so far, without a gradient and without synchronization. None before the first.
        share: this process's share of the step's samples, relative to the mean of all processes: 1 if all have equally many.
    """

    def __init__(
        self,
        number: int,
        parts: list[LoadedMicroBatch],
        gradient_sync: GradientSync,
        precision: Precision,
        monitor: Monitor,
    ) -> None:
        self.number, self.weight = number, 0.0
        self.loss: Tensor | None = None
        self._parts, self._gradient_sync, self._precision, self._monitor = parts, gradient_sync, precision, monitor
        self.share = sum([part.weight for part in parts])
        self._due = len(parts)

    def __iter__(self) -> Iterator[Any]:
        """Yield the batch of each micro-batch. The loop's body runs in the number format; gradients are synchronized after the last micro-batch."""
        for part in self._parts:
            self.weight = part.weight
            with self._gradient_sync.enabled_if(part.last), self._monitor.phase("forward"), self._precision.autocast():
                yield part.batch

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of one micro-batch to those of the step, given its mean loss.

        Raises:
            ValueError: the loss is not one number.
        """
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            has = f"has shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else f"is {loss!r}"
            raise ValueError(f"the loss must be the mean over the micro-batch, a tensor with one number, and {has}")
        with self._monitor.phase("backward"), self._precision.outside():
            self._precision.backward(loss if self.weight == 1 else loss * self.weight)
        self.record_loss(loss)

    def record_loss(self, loss: Tensor) -> None:
        """Record that the gradients of the current micro-batch exist without `backward`: a `Pipeline` has computed them with `weight`."""
        self._due -= 1
        # The mean over the micro-batches, whatever their sizes.
        part, share = loss.detach(), self.weight / self.share if self.share else 0.0
        if share != 1:
            part = part * share
        self.loss = part if self.loss is None else self.loss + part

    def check(self) -> None:
        """Raise RuntimeError unless each micro-batch has had exactly one backward pass."""
        if self._due:
            raise RuntimeError(
                f"step {self.number} has {len(self._parts)} micro-batches, and gradients of {len(self._parts) - self._due}: iterate over "
                "the step, and call backward() once for each"
            )


class Loop:
    """Iterates over the remaining steps of a training: `for step in loop`. Create it and iterate over it on all processes at the same time.

    After the loop's body, gradients are clipped, the optimizer steps, metrics are reported, due checkpoints are saved, and
    training stops on request, after a checkpoint.

    Args:
        training: the result of `start`.
        model: the result of `replicate` or `shard`; for a pipeline, the stages of this process.
        optimizer: the optimizer of the model's parameters, or several: for example one for each stage.
        data: the loader of the steps' micro-batches.
        total_steps: the number of the last step.
        checkpoints: where checkpoints are stored. None: no checkpoints, and each start begins at step 1.
        extra_state: further objects with a state dict to save, by name. Model, optimizer, loss scale and data position are always saved.
        lr_schedule: the schedule of the learning rate.
        precision: the number format; by default fp32, with TF32 matrices if the device supports it.
        max_grad_norm: the norm to which gradients are clipped. None: no clipping, and no gradient norm in the metrics.
        monitor: by default a `Monitor` with default settings.
        tracking: the experiment tracker to report to: MLflow or TensorBoard.
        checkpoint_metrics: returns the metrics that `CheckpointPolicy(keep=Retention(best=…, metric=…))` compares at each checkpoint, for
            example those of the last evaluation. Only rank 0's values are used.
        non_finite: what follows gradients that are not finite. None: the optimizer steps. Whatever it is, a checkpoint with a loss,
            gradient norm, parameter or running statistic that is not finite is not saved.
        collect_every: the steps between two garbage collections, on all processes after the same step. None: Python collects at any time.

    Attributes:
        monitor: for further phases: `with loop.monitor.phase("evaluate")`.

    Raises:
        ValueError: a number is out of range, or two arguments conflict.
    """

    def __init__(  # noqa: PLR0913 - the optional ones are config objects or components of their own
        self,
        training: Training,
        model: nn.Module | Sequence[nn.Module],
        optimizer: Optimizer | Sequence[Optimizer],
        data: Loader,
        *,
        total_steps: int,
        checkpoints: Checkpoints | None = None,
        extra_state: Mapping[str, Any] | None = None,
        lr_schedule: LRSchedule | None = None,
        precision: Precision | None = None,
        max_grad_norm: float | None = None,
        monitor: Monitor | None = None,
        tracking: Tracking | None = None,
        checkpoint_metrics: Callable[[], Mapping[str, float | None]] | None = None,
        non_finite: NonFinitePolicy | None = None,
        collect_every: int | None = COLLECT_EVERY_STEPS,
    ) -> None:
        if total_steps < 1:
            raise ValueError(f"total_steps must be from 1 on, not {total_steps}")
        if collect_every is not None and collect_every < 1:
            raise ValueError(f"collect_every must be a number of steps from 1 on, or None, and not {collect_every}")
        self._collect_every = collect_every
        self._training, self._data, self._total_steps = training, data, total_steps
        self._models = [model] if isinstance(model, torch.nn.Module) else list(model)
        self._optimizers = [optimizer] if isinstance(optimizer, torch.optim.Optimizer) else list(optimizer)
        self._precision = precision or Precision(None, training.device)
        self._check_fp16()
        if checkpoints and checkpoints.policy.keep.best and checkpoint_metrics is None:
            raise ValueError("the policy keeps the best checkpoints but no metric is reported: pass checkpoint_metrics")
        self._checkpoints, self._tracking, self._lr_schedule = checkpoints, tracking, lr_schedule
        parameters = (parameter for each in self._models for parameter in each.parameters())
        # The guard of the steps needs the norm; infinity only measures it.
        limit = math.inf if max_grad_norm is None and non_finite else max_grad_norm
        self._clipper = None if limit is None else GradientClipper(parameters, training.mesh, limit)
        self._checkpoint_metrics = checkpoint_metrics
        self._guard_steps(non_finite)
        self._state = self._checkpoint_state(extra_state or {})
        self.monitor = monitor or Monitor(
            total_steps=total_steps, compute_phases=self._compute_phases(), device=training.device
        )
        for each in self._models:
            if isinstance(each, Replicated):
                each.waiting = partial(self.monitor.phase, "communication")
        self.monitor.computes_in(self._precision.name)
        # Pipeline stages synchronize on their own.
        self._gradient_sync = GradientSync(self._models[0] if len(self._models) == 1 else torch.nn.Identity())
        # Cached, since mesh lookups take longer than all other work of the loop in a step.
        mesh = training.mesh
        self._counts = not any(mesh[name].get_local_rank() for name in ("pipeline", "context", "tensor"))

    def _guard_steps(self, policy: NonFinitePolicy | None) -> None:
        """Create the guard of the steps. Raises ValueError for fp16, whose loss scale skips steps itself."""
        self._guard = StepGuard(policy, self._training.device) if policy else None
        self._unsaved = False
        if policy and self._precision.name == "fp16":
            raise ValueError("fp16 skips steps by its loss scale: leave non_finite out, or use bf16")

    def _check_fp16(self) -> None:
        """Raise ValueError if the loss scale of fp16 would be inconsistent."""
        if self._precision.name != "fp16":
            return
        if len(self._optimizers) > 1:
            raise ValueError(f"fp16 scales the loss for one optimizer, and there are {len(self._optimizers)}: use bf16")
        if size(self._training.mesh, "pipeline") > 1:
            raise ValueError(
                "fp16 scales the loss of one backward pass, and pipeline stages check their gradients separately: use bf16"
            )

    def _checkpoint_state(self, extra_state: Mapping[str, Any]) -> dict[str, Any]:
        """Return the state for a checkpoint, by name. Raises ValueError if `extra_state` uses a reserved name."""
        own: dict[str, Any] = {"train_state": TrainState(self._models, self._optimizers)}
        if self._precision.name == "fp16":
            own["precision"] = self._precision
        if reserved := own.keys() & extra_state.keys():
            raise ValueError(
                f"extra_state has {', '.join(sorted(reserved))}, which the loop saves itself: choose another name"
            )
        return {**own, **extra_state}

    def __iter__(self) -> Iterator[Step]:
        """Yield the steps after the last checkpoint.

        Raises:
            RuntimeError: a micro-batch has no gradients.
            NonFiniteError: too many steps in a row were skipped, or the last step's state is not finite.
            SystemExit: the training stopped on request and is saved: exit code 90.
        """
        resumed = self._resume()
        with collected_every(self._collect_every) if self._collect_every else nullcontext() as collect:
            yield from self._steps_after(resumed, collect)

    def _steps_after(self, done: int, collect: Callable[[int], None] | None) -> Iterator[Step]:
        for number in range(done + 1, self._total_steps + 1):
            self._training.reseed(number)
            if self._lr_schedule:
                for optimizer in self._optimizers:
                    self._lr_schedule.apply(optimizer, self._data.batches.cursor)
            with self.monitor.phase("data"):
                parts = next(self._data)
            step = Step(number, parts, self._gradient_sync, self._precision, self.monitor)
            yield step
            step.check()
            norm = self._update()
            self.monitor.step(
                number, samples=self._samples(step.share), loss=step.loss, loss_share=step.share, grad_norm=norm
            )
            if self._guard:
                self._guard.check(number)
            self._save(number, step.loss, norm)
            if collect:
                collect(number)
        self._data.close()
        self.monitor.close()

    def provenance(self, *, configuration: Any = None, source: str = "") -> Provenance:
        """Return the provenance of the model for `export_model`: data, last metrics, last checkpoint.

        Args:
            configuration: the program's arguments, as for `Provenance`.
            source: the location of the data.
        """
        known = self.monitor.snapshot()
        return Provenance(
            configuration=configuration,
            data={"source": source, **self._data.state_dict()},
            metrics={"loss": known.loss, "grad_norm": known.grad_norm},
            checkpoint=self._checkpoints.newest if self._checkpoints else None,
            checkpoints=self._checkpoints.url if self._checkpoints else "",
        )

    def _resume(self) -> int:
        """Load the last checkpoint, and return its step."""
        if self._checkpoints:
            self._training.exit_stack.push(self._close)
        found = self._checkpoints.load(self._state) if self._checkpoints else None
        if self._checkpoints:
            # Report how long ago the checkpoint's step ended, since saving is asynchronous.
            record = self.monitor.record_checkpoint
            self._checkpoints.observers.append(lambda made, _: record(made.step, max(0.0, time.time() - made.time)))
        if self._tracking:
            self._training.exit_stack.push(self._tracking)  # its exit status is known only outside of the loop
            self._tracking.start(self.monitor, checkpoints=self._checkpoints, found=found)
        if found is None:
            return 0
        self._data.load_state_dict(found.data)
        if found.step >= self._total_steps and self._training.is_rank0:
            logger.info("nothing is left to do: %d of %d steps are done", found.step, self._total_steps)
        return found.step

    def _close(self, kind: type[BaseException] | None, error: BaseException | None, *_: object) -> None:
        """Finish the pending checkpoint if the loop is left early without an error of the program."""
        well = kind is None or (isinstance(error, SystemExit) and not error.code)
        if self._checkpoints and well:
            self._checkpoints.close()
        elif self._checkpoints and isinstance(error, NonFiniteError):
            # The pending checkpoint is good. Other processes may notice the error a step later, so that none may wait for their answer.
            self._checkpoints.wait()

    def _update(self) -> Tensor | None:
        norm = None
        with self.monitor.phase("optimizer"):
            if self._clipper:
                for optimizer in self._optimizers:
                    self._precision.unscale(optimizer)
                norm = self._clipper.clip()
            if self._guard and norm is not None:
                self._guard.judge(norm)
            for optimizer in self._optimizers:
                if self._guard:
                    self._guard.step(optimizer)
                else:
                    self._precision.step(optimizer)
                optimizer.zero_grad()
        return norm

    def _save(self, number: int, loss: Tensor | None, norm: Tensor | None) -> None:
        """Save a checkpoint if one is due, and exit if a stop was requested."""
        stop, last = self._training.must_stop(number), number == self._total_steps
        saved = False
        if self._checkpoints:
            due = self._checkpoints.should_save(number)
            tier = Tier.STORE if stop or last else due
            if tier:
                saved = self._save_to(self._checkpoints, number, tier, wait=stop or last, values=(loss, norm))
        if stop and not last:
            if self._training.is_rank0:
                why = "as its state is not finite" if self._checkpoints else "as there are no checkpoints"
                outcome = "saved" if saved else f"not saved, {why}"
                logger.info("stopping on request after step %d of %d: %s", number, self._total_steps, outcome)
            self._training.exit()

    def _save_to(
        self,
        checkpoints: Checkpoints,
        number: int,
        tier: Tier,
        *,
        wait: bool,
        values: tuple[Tensor | None, Tensor | None],
    ) -> bool:
        """Save a checkpoint, and return True; or False if its loss, gradient norm or state is not finite on some process.

        Raises:
            NonFiniteError: it is the last one.
        """
        # In fp16, a norm that is not finite is normal, and its step is skipped.
        numbers = values[:1] if self._precision.name == "fp16" else values
        finite = checkpoints.agree(all_finite(numbers, self._models))
        if not finite:
            return self._leave_unsaved(number)
        self._unsaved = False
        metrics = self._checkpoint_metrics() if self._checkpoint_metrics else None
        with self.monitor.phase("checkpoint"):
            checkpoints.save(number, self._state, data=self._data.state_dict(), metrics=metrics, tier=tier, wait=wait)
        return True

    def _leave_unsaved(self, number: int) -> bool:
        text = f"step {number}: no checkpoint is saved, as the loss, the gradient norm, a parameter or a running mean is not finite"
        if number == self._total_steps:
            raise NonFiniteError(text)
        if self._training.is_rank0 and not self._unsaved:
            logger.warning("%s; the last good checkpoint stays", text)
        self._unsaved = True
        return False

    def _samples(self, share: float) -> int:
        """Return the samples of a step that this process counts. Of processes with the same samples, only the first counts them."""
        return (
            round(share * self._data.batches.batch_size / self._training.data_shard.world_size) if self._counts else 0
        )

    def _compute_phases(self) -> tuple[str, ...]:
        """Return the phases in which this process waits for no other process."""
        mesh = self._training.mesh
        if size(mesh, "pipeline") > 1:
            return ()
        waits = size(mesh, "tensor") * size(mesh, "context") > 1 or any(
            isinstance(module, (FSDPModule, SyncBatchNorm)) for model in self._models for module in model.modules()
        )
        return ("data",) if waits else ("data", "forward")
