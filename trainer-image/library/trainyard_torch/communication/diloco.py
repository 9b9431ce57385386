"""DiLoCo: replica groups train on their own for many steps, then an outer optimizer applies the average of their changes.

The averaged change is used as a gradient: Nesterov's momentum moves the parameters from which all replica groups start the next round.
Only this change is sent between groups, once per round. How a group trains internally is the caller's choice: DDP, or one process.

Source: A. Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models", 2023, algorithm 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import Tensor, nn

    from trainyard_torch.communication.replica_group import ReplicaGroup

MESSAGE = 1 << 26
"""The elements that are sent at once: 256 MiB of fp32."""


class DiLoCo:
    """The outer optimizer of one model. Call `step` after each step of the inner one.

    It stores, in fp32 at least, the parameters of the last synchronization and a momentum: twice the model, and once more while it synchronizes.

    Args:
        model: has all of its parameters on each process, equal on all. In DDP over `replica_group.intra_group` if groups have several processes.
        replica_group: the result of `join_replica_group`.
        sync_every: the inner steps of a round, H in the paper, where it is 500.
        outer_lr: the outer learning rate.
        outer_momentum: the outer Nesterov momentum, from 0 to less than 1.

    Attributes:
        steps: the inner steps so far.
        sent_bytes: the bytes that this process has passed to all-reduces between groups. Each process of a group sends its share.

    Raises:
        ValueError: a number is out of range, or the model is wrapped over other processes.
    """

    def __init__(
        self,
        model: nn.Module,
        replica_group: ReplicaGroup,
        *,
        sync_every: int = 500,
        outer_lr: float = 0.7,
        outer_momentum: float = 0.9,
    ) -> None:
        if sync_every < 1:
            raise ValueError(f"sync_every must be from 1 on, not {sync_every}")
        if not 0 < outer_lr < float("inf"):
            raise ValueError(f"outer_lr must be positive, not {outer_lr}")
        if not 0 <= outer_momentum < 1:
            raise ValueError(f"outer_momentum must be from 0 to less than 1, not {outer_momentum}")
        wrapped = isinstance(model, DistributedDataParallel)
        over = model.process_group.size() if wrapped else 1
        if over != replica_group.layout.size:
            raise ValueError(
                f"model is trained by {over} processes, and a replica group has {replica_group.layout.size}: wrap it with "
                "DistributedDataParallel(model, process_group=replica_group.intra_group)"
            )
        self._replica_group, self._sync_every, self.steps, self.sent_bytes = replica_group, sync_every, 0, 0
        named = (model.module if wrapped else model).named_parameters()
        self._local = {name: value for name, value in named if value.requires_grad}
        self._global = {name: _wide(value.detach()).clone() for name, value in self._local.items()}
        # Nothing else makes the groups start from the same parameters.
        for value in self._global.values():
            dist.broadcast(value, src=0)
        self._outer = torch.optim.SGD(self._global.values(), outer_lr, outer_momentum, nesterov=outer_momentum > 0)
        for value in self._global.values():
            # torch starts with zeros. Created now, so that each checkpoint has the same keys.
            self._outer.state[value]["momentum_buffer"] = torch.zeros_like(value)
        self._begin()

    @property
    def synchronized(self) -> bool:
        """Return whether all replica groups have the same parameters now: the best moment for a checkpoint."""
        return self.steps % self._sync_every == 0

    def step(self) -> bool:
        """Count an inner step, and synchronize at the end of a round. A collective: call it on all processes.

        Returns:
            Whether a round ended: all replica groups then have the same parameters.
        """
        self.steps += 1
        if not self.synchronized:
            return False
        with torch.no_grad():
            for names in _messages(self._global):
                self._average(names)
        self._outer.step()
        self._outer.zero_grad()
        self._begin()
        return True

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint, in addition to model and inner optimizer: the same on all processes, for any number of groups."""
        moved = {name: self._outer.state[value]["momentum_buffer"] for name, value in self._global.items()}
        return {"steps": self.steps, "parameters": dict(self._global), "momentum": moved}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state of `state_dict`. The model's parameters are loaded separately.

        Raises:
            ValueError: it is of another model.
        """
        if state["parameters"].keys() != self._global.keys():
            odd = sorted(state["parameters"].keys() ^ self._global.keys())
            raise ValueError(f"the checkpoint's DiLoCo is of another model: {odd[0]} is in one of them only")
        self.steps = state["steps"]
        with torch.no_grad():
            for name, value in self._global.items():
                value.copy_(state["parameters"][name])
                self._outer.state[value]["momentum_buffer"].copy_(state["momentum"][name])

    def _begin(self) -> None:
        """Set the model to the parameters from which all replica groups start a round."""
        with torch.no_grad():
            for name, value in self._global.items():
                self._local[name].copy_(value)

    def _average(self, names: list[str]) -> None:
        """Set the gradients to the mean change of these parameters over all replica groups."""
        replica_group = self._replica_group
        changes = torch.cat([(self._global[name] - _wide(self._local[name])).reshape(-1) for name in names])
        size, processes = changes.numel(), replica_group.layout.size
        # Each process of a group averages its part with the other groups, all at once. Then the group gathers the parts.
        parts = torch.nn.functional.pad(changes, (0, -size % processes)).chunk(processes)
        mine = parts[replica_group.intra_group.rank()].clone()
        dist.all_reduce(mine, group=replica_group.inter_group)
        mine /= replica_group.layout.count
        self.sent_bytes += mine.nbytes
        gathered = mine
        if processes > 1:
            gathered = torch.empty(processes * mine.numel(), dtype=mine.dtype, device=mine.device)
            dist.all_gather_into_tensor(gathered, mine, group=replica_group.intra_group)
        sizes = [self._global[name].numel() for name in names]
        for name, change in zip(names, gathered[:size].split(sizes), strict=True):
            self._global[name].grad = change.view_as(self._global[name])


def _wide(value: Tensor) -> Tensor:
    """Return the type for the outer state, fp32 at least: a small outer step would be lost in 16 bits."""
    return value.to(torch.promote_types(value.dtype, torch.float32))


def _messages(parameters: Mapping[str, Tensor]) -> Iterator[list[str]]:
    """Return the names of parameters that are sent together: of one type, and few enough."""
    names: list[str] = []
    elements = 0
    for name, value in parameters.items():
        if names and (elements + value.numel() > MESSAGE or value.dtype != parameters[names[0]].dtype):
            yield names
            names, elements = [], 0
        names.append(name)
        elements += value.numel()
    if names:
        yield names
