"""Local SGD: each island takes steps of its own, and parameters are averaged now and then. torch's own parts, put together and checked.

Sources:
    T. Lin, S. U. Stich, K. K. Patel, M. Jaggi, "Don't Use Large Mini-Batches, Use Local SGD", ICLR 2020: post-local SGD.
    J. Wang, S. Wang, R.-R. Chen, M. Ji, "Demystifying Why Local Aggregation Helps: Convergence Analysis of Hierarchical SGD", AAAI 2022.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
from torch.distributed.algorithms.model_averaging.hierarchical_model_averager import HierarchicalModelAverager
from torch.nn.parallel import DistributedDataParallel

from trainyard_torch.communication.islands import checked

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trainyard_torch.communication.island import Island


class Averaging:
    """The averaging of one model's parameters. `local_sgd` and `hierarchical` make it.

    Call `step` after each step of the optimizer and before gradients are set to None: torch averages the parameters that have one.
    """

    def __init__(self, model: DistributedDataParallel, island: Island, levels: Mapping[int, int], warmup: int) -> None:
        _check(model, island, warmup)
        self._model, self._levels = model, checked(levels, island.islands)
        self._warmup = warmup
        self._averager = HierarchicalModelAverager(self._levels, warmup_steps=warmup)
        # torch's count begins with 0, and would average after the first step. With 1, it averages after `period` steps.
        self._averager.step = 1
        alone = island.islands.size == 1
        self._hook = PostLocalSGDState(
            model.process_group, island.inside, warmup, post_local_gradient_allreduce=not alone
        )
        model.register_comm_hook(self._hook, post_localSGD_hook)

    @property
    def steps(self) -> int:
        """How many steps were taken."""
        return int(self._averager.step) - 1

    @property
    def equal(self) -> bool:
        """Whether all processes have the same parameters now: the best moment for a checkpoint."""
        return self.steps <= self._warmup or self.steps % max(self._levels) == 0

    def step(self) -> int:
        """Count a step, and average where it is time for it.

        Returns:
            How many processes have averaged their parameters; 0: none.

        Raises:
            ValueError: no parameter has a gradient.
        """
        if all(parameter.grad is None for parameter in self._model.parameters()):
            raise ValueError("no parameter has a gradient: call step after optimizer.step() and before zero_grad()")
        taken = self.steps + 1
        self._averager.average_parameters(self._model.parameters())
        due = [size for period, size in self._levels.items() if taken % period == 0]
        return due[-1] if due and taken >= self._warmup else 0

    def state_dict(self) -> dict[str, int]:
        """What a checkpoint has to hold, beside model and optimizer."""
        return {"steps": self.steps, "exchanges": self._hook.iter}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go on from what `state_dict` gave."""
        self._averager.step, self._hook.iter = state["steps"] + 1, state["exchanges"]


def local_sgd(model: DistributedDataParallel, island: Island, *, period: int, warmup: int = 0) -> Averaging:
    """Average gradients inside islands in each step, and parameters over all processes every `period` steps.

    Args:
        model: wrapped in DDP over all processes, and without another hook.
        island: from `join`. As many islands as processes: local SGD proper, where no gradient is exchanged at all.
        period: steps from one averaging to the next.
        warmup: steps at the beginning in which gradients are averaged over all processes, as DDP does it.

    Raises:
        ValueError: a number is out of its range, or the model cannot be trained so.
    """
    return Averaging(model, island, {period: island.islands.world}, warmup)


def hierarchical(
    model: DistributedDataParallel, island: Island, *, levels: Mapping[int, int], warmup: int = 0
) -> Averaging:
    """The same with several levels: the more distant, the less often.

    Args:
        model: as for `local_sgd`.
        island: likewise.
        levels: after how many steps how many processes of consecutive ranks average their parameters: `{4: 8, 16: 64}`. Numbers of
            steps are multiples of each other, and so are groups; the last is all processes.
        warmup: as for `local_sgd`.

    Raises:
        ValueError: as for `local_sgd`.
    """
    return Averaging(model, island, levels, warmup)


def _check(model: DistributedDataParallel, island: Island, warmup: int) -> None:
    if not isinstance(model, DistributedDataParallel):
        raise ValueError(f"model must be wrapped in DistributedDataParallel, and is a {type(model).__name__}")  # noqa: TRY004
    if warmup < 0:
        raise ValueError(f"warmup must be from 0 on, and is {warmup}")
    if model.process_group.size() != island.islands.world:
        raise ValueError(
            f"model is wrapped over {model.process_group.size()} of {island.islands.world} processes: give DDP no process_group, "
            "islands are made by its hook"
        )
    if model.broadcast_buffers and next(model.module.buffers(), None) is not None:
        raise ValueError(
            "model has buffers, and DDP would send them to all processes in each step: wrap it with broadcast_buffers=False"
        )
