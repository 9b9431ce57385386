"""The loop of a training: data in, a step of the optimizer, checkpoints, progress and an end in time. The model and its loss are the program's."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.fsdp import FSDPModule

from trainyard_torch.checkpoint.pace import Tier
from trainyard_torch.checkpoint.trained import Trained
from trainyard_torch.export.record import About
from trainyard_torch.mesh import size
from trainyard_torch.parallel.gradients import Exchange, clip_gradients
from trainyard_torch.precision import Precision
from trainyard_torch.watch.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from torch import Tensor, nn
    from torch.optim import Optimizer

    from trainyard_torch.checkpoint.checkpoints import Checkpoints
    from trainyard_torch.context import Training
    from trainyard_torch.data.loader import Loader
    from trainyard_torch.data.recipe import Part
    from trainyard_torch.optim.schedule import Schedule
    from trainyard_torch.tracking.tracking import Tracking

logger = logging.getLogger(__name__)


class Step:
    """One step: iterate over it for its micro-batches, and call `backward` with the loss of each.

    Attributes:
        number: of the step, from 1 on.
        weight: of the micro-batch in hand, for who makes gradients without `backward`: what its mean loss is to be multiplied with.
        loss: of this process's samples so far, without a gradient, not waited for; None before the first.
        share: of the step's samples that this process has, over the mean of all processes: 1 where all have as many.
    """

    def __init__(self, number: int, parts: list[Part], exchange: Exchange, precision: Precision, watch: Watch) -> None:
        self.number, self.weight = number, 0.0
        self.loss: Tensor | None = None
        self._parts, self._exchange, self._precision, self._watch = parts, exchange, precision, watch
        self.share = sum(part.weight for part in parts)
        self._due = len(parts)

    def __iter__(self) -> Iterator[Any]:
        """What `collate` made of each micro-batch. In the loop's body the number format holds, and gradients are exchanged after the last."""
        for part in self._parts:
            self.weight = part.weight
            with self._exchange.when(part.last), self._watch.phase("forward"), self._precision.autocast():
                yield part.batch

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of a micro-batch, whose mean loss this is, to those of the step.

        Raises:
            ValueError: it is not one number.
        """
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            has = f"has shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else f"is {loss!r}"
            raise ValueError(f"the loss must be the mean over the micro-batch, a tensor with one number, and {has}")
        with self._watch.phase("backward"), self._precision.outside():
            self._precision.backward(loss if self.weight == 1 else loss * self.weight)
        self.note(loss)

    def note(self, loss: Tensor) -> None:
        """The gradients of the micro-batch in hand are there without `backward`: a `Pipeline` has made them, at `weight`."""
        self._due -= 1
        # Over the micro-batches it is their mean, whatever their sizes.
        part, share = loss.detach(), self.weight / self.share if self.share else 0.0
        if share != 1:
            part = part * share
        self.loss = part if self.loss is None else self.loss + part

    def check(self) -> None:
        """Raises RuntimeError where gradients of a micro-batch are missing, or of one too many are there."""
        if self._due:
            raise RuntimeError(
                f"step {self.number} has {len(self._parts)} micro-batches, and gradients of {len(self._parts) - self._due}: iterate over "
                "the step, and call backward() once for each"
            )


class Loop:
    """All steps that are left: `for step in loop`. To be made by all processes at the same time, and gone through by all.

    What is not done in the loop's body is done after it: gradients are clipped, the optimizer takes its step, the agent and Prometheus are
    told, checkpoints are saved when they are due, and the training ends where it is asked to, after a checkpoint.

    Args:
        training: what `start` gave.
        model: as it was wrapped; of a pipeline this process's stages.
        optimizer: of the model: one for all stages, one for each, or any others.
        data: the steps' micro-batches.
        until: the last step.
        checkpoints: where they are; None: none are made, and each start begins anew.
        state: more to go into them, beside model, optimizer, scale and place in the data: objects with a state dict, by name.
        schedule: of the learning rate.
        precision: the number format; by default fp32, with matrices in TF32 where the device has it.
        longest: the norm that gradients are clipped to; None: they are not.
        watch: by default one with the usual settings.
        tracking: whom the training is told to besides: MLflow or TensorBoard.
        metrics: gives, at each checkpoint, the numbers by which `Plan(keep=Keep(best=…, metric=…))` compares them: those of the last
            evaluation, say. Rank 0's count.

    Attributes:
        watch: for phases of the program's own: `with loop.watch.phase("evaluate")`.

    Raises:
        ValueError: a number is out of its range, or two things do not go together.
    """

    def __init__(  # noqa: PLR0913 - each is a choice of its own
        self,
        training: Training,
        model: nn.Module | Sequence[nn.Module],
        optimizer: Optimizer | Sequence[Optimizer],
        data: Loader,
        *,
        until: int,
        checkpoints: Checkpoints | None = None,
        state: Mapping[str, Any] | None = None,
        schedule: Schedule | None = None,
        precision: Precision | None = None,
        longest: float | None = None,
        watch: Watch | None = None,
        tracking: Tracking | None = None,
        metrics: Callable[[], Mapping[str, float | None]] | None = None,
    ) -> None:
        if until < 1:
            raise ValueError(f"until must be from 1 on, and is {until}")
        self._training, self._data, self._until = training, data, until
        self._models = [model] if isinstance(model, torch.nn.Module) else list(model)
        self._optimizers = [optimizer] if isinstance(optimizer, torch.optim.Optimizer) else list(optimizer)
        self._precision = precision or Precision(None, training.device)
        if self._precision.name == "fp16" and len(self._optimizers) > 1:
            raise ValueError(
                f"fp16 scales the loss for one optimizer, and there are {len(self._optimizers)}: take bf16"
            )
        if self._precision.name == "fp16" and size(training.mesh, "pipeline") > 1:
            raise ValueError(
                "fp16 scales the loss of one backward pass, and stages of a pipeline judge their gradients each by itself: take bf16"
            )
        if checkpoints and checkpoints.plan.keep.best and metrics is None:
            raise ValueError("the plan keeps the best checkpoints, and nothing says which these are: give metrics")
        self._checkpoints, self._tracking, self._schedule, self._longest = checkpoints, tracking, schedule, longest
        self._metrics = metrics
        ours: dict[str, Any] = {"trained": Trained(self._models, self._optimizers)}
        if self._precision.name == "fp16":
            ours["precision"] = self._precision
        if taken := ours.keys() & (state or {}).keys():
            raise ValueError(
                f"state has {', '.join(sorted(taken))}, which the loop keeps by itself: choose another name"
            )
        self._state = {**ours, **(state or {})}
        self.watch = watch or Watch(total=until, own=self._own(), device=training.device)
        # The stages of a pipeline exchange by themselves.
        self._exchange = Exchange(self._models[0] if len(self._models) == 1 else torch.nn.Identity())
        # To ask the mesh takes longer than all else that the loop does in a step.
        mesh = training.mesh
        self._counts = not any(mesh[name].get_local_rank() for name in ("pipeline", "context", "tensor"))

    def __iter__(self) -> Iterator[Step]:
        """The steps from where the last start of the training stood.

        Raises:
            RuntimeError: gradients of a micro-batch are missing.
            SystemExit: the training was asked to end, and is saved: exit code 90.
        """
        for number in range(self._begin() + 1, self._until + 1):
            self._training.reseed(number)
            if self._schedule:
                for optimizer in self._optimizers:
                    self._schedule.set(optimizer, self._data.batches.cursor)
            with self.watch.phase("data"):
                parts = next(self._data)
            step = Step(number, parts, self._exchange, self._precision, self.watch)
            yield step
            step.check()
            norm = self._update()
            self.watch.step(number, samples=self._samples(parts), loss=step.loss, loss_share=step.share, grad_norm=norm)
            self._keep(number)
        self._data.close()
        self.watch.close()

    def about(self, *, configuration: Any = None, source: str = "") -> About:
        """What the record of an export says of this training, for `export_model`: data, last numbers, last checkpoint.

        Args:
            configuration: the program's arguments, as `About` takes them.
            source: where the data lie.
        """
        known = self.watch.reading()
        return About(
            configuration=configuration,
            data={"source": source, **self._data.state_dict()},
            metrics={"loss": known.loss, "grad_norm": known.grad_norm},
            checkpoint=self._checkpoints.newest if self._checkpoints else None,
            checkpoints=self._checkpoints.url if self._checkpoints else "",
        )

    def _begin(self) -> int:
        """The last step that is done already."""
        if self._checkpoints:
            self._training.ending.push(self._close)
        found = self._checkpoints.load(self._state) if self._checkpoints else None
        if self._checkpoints:
            # Its time is that of its begin.
            tell = self.watch.checkpointed
            self._checkpoints.observers.append(lambda made, _: tell(made.step, max(0.0, time.time() - made.time)))
        if self._tracking:
            self._training.ending.push(self._tracking)  # by what it ends is known outside alone
            self._tracking.begin(self.watch, checkpoints=self._checkpoints, found=found)
        if found is None:
            return 0
        self._data.load_state_dict(found.data)
        if found.step >= self._until and self._training.is_first:
            logger.info("nothing is left to do: %d of %d steps are done", found.step, self._until)
        return found.step

    def _close(self, kind: type[BaseException] | None, error: BaseException | None, *_: object) -> None:
        """Who leaves the loop before its last step, and ends well, has the checkpoint that is under way."""
        well = kind is None or (isinstance(error, SystemExit) and not error.code)
        if self._checkpoints and well:
            self._checkpoints.close()

    def _update(self) -> Tensor | None:
        norm = None
        with self.watch.phase("optimizer"):
            if self._longest is not None:
                for optimizer in self._optimizers:
                    self._precision.unscale(optimizer)
                parameters = (parameter for model in self._models for parameter in model.parameters())
                norm = clip_gradients(parameters, self._training.mesh, self._longest)
            for optimizer in self._optimizers:
                self._precision.step(optimizer)
                optimizer.zero_grad()
        return norm

    def _keep(self, number: int) -> None:
        stop, last = self._training.must_stop(number), number == self._until
        tier = self._checkpoints.due(number) if self._checkpoints else None
        if self._checkpoints and (tier or stop or last):
            with self.watch.phase("checkpoint"):
                self._checkpoints.save(
                    number,
                    self._state,
                    data=self._data.state_dict(),
                    metrics=self._metrics() if self._metrics else None,
                    tier=Tier.STORE if stop or last else tier or Tier.STORE,
                    wait=stop or last,
                )
        if stop and not last:
            if self._training.is_first:
                saved = "is saved" if self._checkpoints else "is the last: without checkpoints it is lost"
                logger.info("the training was asked to end: step %d of %d %s", number, self._until, saved)
            self._training.leave()

    def _samples(self, parts: list[Part]) -> int:
        """What this process counts: of those that work on the same samples, the first counts them all."""
        if not self._counts:
            return 0
        return round(sum(part.weight for part in parts) * self._data.batches.batch / self._training.member.world)

    def _own(self) -> tuple[str, ...]:
        """The phases in which this process waits for no other."""
        mesh = self._training.mesh
        if size(mesh, "pipeline") > 1:
            return ()
        waits = size(mesh, "tensor") * size(mesh, "context") > 1 or any(
            isinstance(module, FSDPModule) for model in self._models for module in model.modules()
        )
        return ("data",) if waits else ("data", "forward")
