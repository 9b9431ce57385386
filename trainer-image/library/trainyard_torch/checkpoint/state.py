"""What a checkpoint is made of: the state of a model and its optimizer, copies of it, and how it is put back. Writes nothing."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.checkpoint.staging import BlockingAsyncStager
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_map  # private, and what torch's own stagers go by
from typing_extensions import override

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# By parameter, not by number: so it fits another parallelism, and stages of a pipeline that hold other layers.
OPTIONS = StateDictOptions(flatten_optimizer_state_dict=True)


class Trained(Stateful):  # type: ignore[misc]  # torch is there where this runs
    """A model and its optimizer, in whatever parallelism, under the names that the plain model has.

    Args:
        models: the model; of a pipeline all stages that this process holds.
        optimizers: that of the model; as many as there are stages.

    Raises:
        ValueError: there are not as many optimizers as models.
    """

    def __init__(
        self,
        models: torch.nn.Module | Sequence[torch.nn.Module],
        optimizers: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
    ) -> None:
        self._models = [models] if isinstance(models, torch.nn.Module) else list(models)
        self._optimizers = [optimizers] if isinstance(optimizers, torch.optim.Optimizer) else list(optimizers)
        if len(self._models) != len(self._optimizers):
            raise ValueError(
                f"there are {len(self._models)} models and {len(self._optimizers)} optimizers: each model needs one of its own"
            )

    @override
    def state_dict(self) -> dict[str, Any]:
        parts = [
            get_state_dict(model, optimizer, options=OPTIONS)
            for model, optimizer in zip(self._models, self._optimizers, strict=True)
        ]
        return {
            "model": {name: value for model, _ in parts for name, value in model.items()},
            "optimizer": {name: value for _, optimizer in parts for name, value in optimizer.items()},
        }

    @override
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        # Each takes its own out of the whole; of what is missing there torch tells.
        for model, optimizer in zip(self._models, self._optimizers, strict=True):
            own_model, own_optimizer = get_state_dict(model, optimizer, options=OPTIONS)
            set_state_dict(
                model,
                optimizer,
                model_state_dict={name: state_dict["model"][name] for name in own_model},
                optim_state_dict={name: state_dict["optimizer"][name] for name in own_optimizer},
                options=OPTIONS,
            )


def plain(state: Mapping[str, Any]) -> dict[str, Any]:
    """State dicts alone, in place of the objects that have one. Their tensors are those of the training."""
    return {name: value.state_dict() if isinstance(value, Stateful) else value for name, value in state.items()}


def staged(state: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of state dicts in the memory of the host, which the training does not change any more."""

    def cloned(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return copy.deepcopy(value)
        # torch's stager copies what lies on a device, and takes what is on the host as it is.
        return value.detach().clone() if value.device.type == "cpu" else value

    copied: dict[str, Any] = BlockingAsyncStager().stage(tree_map(cloned, dict(state)))
    return copied


def local(state: Any) -> Any:
    """The same with this process's parts of the tensors that are spread over several, as plain tensors."""
    if isinstance(state, DTensor):
        return state.to_local()
    if isinstance(state, dict):
        return {name: local(value) for name, value in state.items()}
    if isinstance(state, (list, tuple)):
        return type(state)(map(local, state))
    return state


def fits(target: Mapping[str, Any], saved: Mapping[str, Any], path: str = "") -> None:
    """That what `local` made can be put back into a state dict.

    Raises:
        ValueError: one has something that the other has not, or a tensor of another shape.
    """
    if target.keys() != saved.keys():
        odd = sorted(map(str, target.keys() ^ saved.keys()))
        raise ValueError(f"{path or 'the state'} differs in {', '.join(odd[:3])}{' …' if len(odd) > 3 else ''}")
    for name, value in saved.items():
        here, below = target[name], f"{path}.{name}" if path else str(name)
        if isinstance(here, dict) and isinstance(value, dict):
            fits(here, value, below)
        elif isinstance(here, torch.Tensor) and isinstance(value, torch.Tensor) and _own(here).shape != value.shape:
            raise ValueError(
                f"{below} has shape {tuple(_own(here).shape)} here, and {tuple(value.shape)} in the checkpoint"
            )


def put(target: dict[str, Any], saved: Mapping[str, Any]) -> None:
    """Put what `local` made back into a state dict that it fits: tensors in place, all else in its place."""
    for name, value in saved.items():
        here = target[name]
        if isinstance(here, dict) and isinstance(value, dict):
            put(here, value)
        elif isinstance(here, torch.Tensor) and isinstance(value, torch.Tensor):
            _own(here).detach().copy_(value)
        else:
            target[name] = value


def _own(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
