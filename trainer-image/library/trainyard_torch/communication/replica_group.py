"""The island that this process is part of: its process groups, and what it alone knows, for checkpoints."""

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
    """The island of this process. `join_replica_group` makes it.

    Attributes:
        islands: how all processes are divided.
        index: which of the islands it is, from 0 on.
        inside: its processes; what DDP takes as `process_group`.
        across: this process and those at its place in the other islands.
    """

    layout: ReplicaGroupLayout
    index: int
    intra_group: dist.ProcessGroup
    inter_group: dist.ProcessGroup


def join_replica_group(groups: int) -> ReplicaGroup:
    """Divide all processes into so many islands. To be called by all of them at the same time.

    Raises:
        ValueError: the number of processes cannot be divided so, or there is no process group yet.
    """
    if not (dist.is_available() and dist.is_initialized()):
        raise ValueError("islands need a process group: call torch.distributed.init_process_group before")
    layout = ReplicaGroupLayout(dist.get_world_size(), groups)
    intra_group, _ = dist.new_subgroups_by_enumeration(layout.intra_ranks)
    inter_group, _ = dist.new_subgroups_by_enumeration(layout.inter_ranks)
    return ReplicaGroup(layout, layout.of(dist.get_rank()), intra_group, inter_group)


class ReplicaGroupState:
    """Model and optimizer as this island has them, where islands differ: for a checkpoint from which a run goes on exactly.

    Each island writes its own, under its number. Without it, a resumed run begins on all islands with what island 0 had. With another
    number of islands it fits no more: leave it out of what is loaded then.

    Args:
        model: as it is trained.
        optimizer: that of its parameters.
        island: this one.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer, replica_group: ReplicaGroup) -> None:
        self._train_state, self._name = TrainState(model, optimizer), f"replica_group_{replica_group.index}"

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint has to hold of this island."""
        return {self._name: self._train_state.state_dict()}

    def state_dict_for(self, keys: Collection[str] | None) -> dict[str, Any]:
        """The same, or what there is to fill in from a checkpoint with these keys (`Fillable`)."""
        inner = f"{self._name}."
        own = None if keys is None else [key.removeprefix(inner) for key in keys if key.startswith(inner)]
        return {self._name: self._train_state.state_dict_for(own)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` gave on this island.

        Raises:
            ValueError: it holds nothing of this island.
        """
        if self._name not in state:
            raise ValueError(
                f"the checkpoint has no {self._name}: leave the state of replica groups out of what is loaded"
            )
        self._train_state.load_state_dict(state[self._name])
