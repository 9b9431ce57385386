"""Local SGD: each replica group trains on its own, and parameters are averaged periodically. Built from torch's own averagers and hooks.

Sources:
    T. Lin, S. U. Stich, K. K. Patel, M. Jaggi, "Don't Use Large Mini-Batches, Use Local SGD", ICLR 2020: post-local SGD.
    J. Wang, S. Wang, R.-R. Chen, M. Ji, "Demystifying Why Local Aggregation Helps: Convergence Analysis of Hierarchical SGD", AAAI 2022.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
from torch.distributed.algorithms.model_averaging.hierarchical_model_averager import HierarchicalModelAverager
from torch.nn.parallel import DistributedDataParallel

from trainyard_torch.communication.replica_group_layout import checked

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trainyard_torch.communication.replica_group import ReplicaGroup


class ModelAveraging:
    """The averaging of one model's parameters. `local_sgd` and `hierarchical_sgd` make it.

    Call `step` after each step of the optimizer and before gradients are set to None: torch averages the parameters that have one.
    """

    def __init__(
        self, model: DistributedDataParallel, replica_group: ReplicaGroup, levels: Mapping[int, int], warmup_steps: int
    ) -> None:
        _check(model, replica_group, warmup_steps)
        self._model, self._levels = model, checked(levels, replica_group.layout)
        self._warmup_steps = warmup_steps
        self._averager = HierarchicalModelAverager(self._levels, warmup_steps=warmup_steps)
        # torch counts from 0, and would average after the first step. Starting at 1, it averages after `period` steps.
        self._averager.step = 1
        alone = replica_group.layout.size == 1
        self._hook = PostLocalSGDState(
            model.process_group, replica_group.intra_group, warmup_steps, post_local_gradient_allreduce=not alone
        )
        model.register_comm_hook(self._hook, post_localSGD_hook)

    @property
    def steps(self) -> int:
        """The number of steps taken."""
        return int(self._averager.step) - 1

    @property
    def synchronized(self) -> bool:
        """Whether all processes have the same parameters now: the best moment for a checkpoint."""
        return self.steps <= self._warmup_steps or self.steps % max(self._levels) == 0

    def step(self) -> int:
        """Count a step, and average parameters if it is due.

        Returns:
            The number of processes that averaged their parameters; 0: none.

        Raises:
            ValueError: no parameter has a gradient.
        """
        if all(parameter.grad is None for parameter in self._model.parameters()):
            raise ValueError("no parameter has a gradient: call step after optimizer.step() and before zero_grad()")
        taken = self.steps + 1
        self._averager.average_parameters(self._model.parameters())
        due = [size for period, size in self._levels.items() if taken % period == 0]
        return due[-1] if due and taken >= self._warmup_steps else 0

    def state_dict(self) -> dict[str, int]:
        """Return the state for a checkpoint, in addition to model and optimizer."""
        return {"steps": self.steps, "exchanges": self._hook.iter}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Restore the state of `state_dict`."""
        self._averager.step, self._hook.iter = state["steps"] + 1, state["exchanges"]


def local_sgd(
    model: DistributedDataParallel, replica_group: ReplicaGroup, *, period: int, warmup_steps: int = 0
) -> ModelAveraging:
    """Average gradients inside replica groups in each step, and parameters over all processes every `period` steps.

    Args:
        model: a model in DDP over all processes, without another hook.
        replica_group: the result of `join_replica_group`. One process per group is plain local SGD, which exchanges no gradients at all.
        period: the steps between two averagings.
        warmup_steps: the first steps, in which DDP averages gradients over all processes.

    Raises:
        ValueError: a number is out of range, or the model cannot be trained so.
    """
    return ModelAveraging(model, replica_group, {period: replica_group.layout.world_size}, warmup_steps)


def hierarchical_sgd(
    model: DistributedDataParallel, replica_group: ReplicaGroup, *, levels: Mapping[int, int], warmup_steps: int = 0
) -> ModelAveraging:
    """Average parameters at several levels: the more distant, the less often.

    Args:
        model: as for `local_sgd`.
        replica_group: as for `local_sgd`.
        levels: the number of steps after which so many processes of consecutive ranks average their parameters: `{4: 8, 16: 64}`. Steps
            are multiples of each other, and so are group sizes; the last group is all processes.
        warmup_steps: as for `local_sgd`.

    Raises:
        ValueError: as for `local_sgd`.
    """
    return ModelAveraging(model, replica_group, levels, warmup_steps)


def _check(model: DistributedDataParallel, replica_group: ReplicaGroup, warmup_steps: int) -> None:
    if not isinstance(model, DistributedDataParallel):
        raise ValueError(f"model must be wrapped in DistributedDataParallel, got a {type(model).__name__}")  # noqa: TRY004 - as for all wrong arguments
    if warmup_steps < 0:
        raise ValueError(f"warmup_steps must be from 0 on, not {warmup_steps}")
    if model.process_group.size() != replica_group.layout.world_size:
        raise ValueError(
            f"model is wrapped over {model.process_group.size()} of {replica_group.layout.world_size} processes: give DDP no process_group, "
            "the hook averages inside replica groups"
        )
    if model.broadcast_buffers and next(model.module.buffers(), None) is not None:
        raise ValueError(
            "model has buffers, and DDP would send them to all processes in each step: wrap it with broadcast_buffers=False"
        )
