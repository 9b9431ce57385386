"""The replica group of this process: its process groups, and the state that differs between groups, for checkpoints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from trainyard_torch.checkpoint.train_state import TrainState
from trainyard_torch.communication.replica_group_layout import ReplicaGroupLayout

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from torch import nn
    from torch.optim import Optimizer


@dataclass(frozen=True, slots=True)
class ReplicaGroup:
    """The replica group of this process. Made by `join_replica_group`.

    Attributes:
        layout: the division of all processes.
        index: the index of this group, from 0 on.
        intra_group: the processes of this group, for DDP's `process_group`.
        inter_group: this process and those with the same rank in the other groups.
    """

    layout: ReplicaGroupLayout
    index: int
    intra_group: dist.ProcessGroup
    inter_group: dist.ProcessGroup


def join_replica_group(groups: int) -> ReplicaGroup:
    """Divide all processes into `groups` replica groups. A collective: call it on all processes at the same time.

    Raises:
        ValueError: the number of processes cannot be divided so, or there is no process group yet.
    """
    if not (dist.is_available() and dist.is_initialized()):
        raise ValueError("replica groups need a process group: call torch.distributed.init_process_group first")
    layout = ReplicaGroupLayout(dist.get_world_size(), groups)
    intra_group, _ = dist.new_subgroups_by_enumeration(layout.intra_ranks)
    inter_group, _ = dist.new_subgroups_by_enumeration(layout.inter_ranks)
    return ReplicaGroup(layout, layout.of(dist.get_rank()), intra_group, inter_group)


class ReplicaGroupState:
    """The model and optimizer of this replica group, for checkpoints between synchronizations, from which a run resumes exactly.

    Each group saves its own, under its index. Without it, all groups resume with the state of group 0. It does not fit
    another number of groups: then leave it out of `load`.

    Args:
        model: the model as it is trained.
        optimizer: the optimizer of its parameters.
        replica_group: the replica group of this process.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer, replica_group: ReplicaGroup) -> None:
        self._train_state, self._name = TrainState(model, optimizer), f"replica_group_{replica_group.index}"

    def state_dict(self) -> dict[str, Any]:
        """Return this group's state for a checkpoint."""
        return {self._name: self._train_state.state_dict()}

    def state_dict_for(self, keys: Collection[str] | None) -> dict[str, Any]:
        """Return the state, or the values to be filled in from a checkpoint with these keys (`Fillable`)."""
        inner = f"{self._name}."
        own = None if keys is None else [key.removeprefix(inner) for key in keys if key.startswith(inner)]
        return {self._name: self._train_state.state_dict_for(own)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned on this group.

        Raises:
            ValueError: there is no state of this group.
        """
        if self._name not in state:
            raise ValueError(
                f"the checkpoint has no {self._name}: leave the state of replica groups out of what is loaded"
            )
        self._train_state.load_state_dict(state[self._name])
