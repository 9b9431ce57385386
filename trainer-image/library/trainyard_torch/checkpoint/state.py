"""Read the state of a training, extract this process's part of it, and put it back. Writes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.tensor import DTensor

from trainyard_torch.checkpoint.train_state import Fillable

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping


def plain(state: Mapping[str, Any], keys: Collection[str] | None = None) -> dict[str, Any]:
    """Replace objects by their state dicts. The tensors are shared with the training.

    Args:
        state: objects and state dicts, by name.
        keys: the keys of the checkpoint to load; None: the state is to be saved.
    """

    def of(name: str, value: Any) -> Any:
        if isinstance(value, Fillable):
            inner = f"{name}."
            own = None if keys is None else [key.removeprefix(inner) for key in keys if key.startswith(inner)]
            return value.state_dict_for(own)
        return value.state_dict() if isinstance(value, Stateful) else value

    return {name: of(name, value) for name, value in state.items()}


def keys_of(state: Mapping[str, Any], above: str = "") -> Iterator[str]:
    """Return the keys of nested dictionaries, joined by dots."""
    for name, value in state.items():
        if isinstance(value, dict):
            yield from keys_of(value, f"{above}{name}.")
        else:
            yield f"{above}{name}"


def local(state: Any) -> Any:
    """Return the state with this process's shards of DTensors as plain tensors."""
    if isinstance(state, DTensor):
        return state.to_local()
    if isinstance(state, dict):
        return {name: local(value) for name, value in state.items()}
    if isinstance(state, (list, tuple)):
        return type(state)(map(local, state))
    return state


def fits(target: Mapping[str, Any], saved: Mapping[str, Any], path: str = "") -> None:
    """Check that the result of `local` fits into a state dict.

    Raises:
        ValueError: the keys differ, or a tensor has another shape.
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
    """Copy what `local` returned into a matching state dict: tensors in place, other values by assignment."""
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
