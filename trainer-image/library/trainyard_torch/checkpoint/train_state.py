"""The state of a model and its optimizers in a checkpoint: by the names of the plain model, at any parallelism."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch
from torch.distributed.checkpoint.stateful import Stateful
from typing_extensions import override

from trainyard_torch.checkpoint import optimizer_state
from trainyard_torch.checkpoint.parameter_names import Names, owned, parameters

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence


@runtime_checkable
class Fillable(Protocol):
    """An object whose state dict depends on the content of a checkpoint."""

    def state_dict_for(self, keys: Collection[str] | None) -> dict[str, Any]:
        """Return the state.

        Args:
            keys: None: the state to be saved. The keys of a checkpoint: the values to be filled in from it. Keys of nested dictionaries are
                joined by dots, without the name of the object itself.
        """


class TrainState(Stateful):  # type: ignore[misc]  # torch is there where this runs
    """A model and its optimizers, at any parallelism, under the names of the plain model.

    Tied weights are stored under all their names; optimizer state under the first one. A parameter without state (frozen, or not used so far)
    has none after loading either, and may be trained from there on.

    Args:
        models: the model; for a pipeline, all stages of this process.
        optimizers: the optimizers of its parameters: one for all, one for each stage, or any others.

    Raises:
        ValueError: a parameter of an optimizer is not the models', or is in two optimizers. Or two models have a parameter of the same
                name. Or FSDP's first version is in a model, or an optimizer is LBFGS.
    """

    def __init__(
        self,
        models: torch.nn.Module | Sequence[torch.nn.Module],
        optimizers: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
    ) -> None:
        self._models = [models] if isinstance(models, torch.nn.Module) else list(models)
        self._optimizers = [optimizers] if isinstance(optimizers, torch.optim.Optimizer) else list(optimizers)
        if any(isinstance(each, torch.optim.LBFGS) for each in self._optimizers):
            # Its step needs a closure, and its state is a list that grows.
            raise ValueError(
                "the state of LBFGS can be saved and not loaded: keep it out of the checkpoint, or take another optimizer"
            )
        self._names()

    @override
    def state_dict(self) -> dict[str, Any]:
        """Return the state as torch's own `get_state_dict` does: optimizers without state get one, so that
        `torch.distributed.checkpoint.load` can fill it.

        `Checkpoints` does not need that.
        """
        for optimizer in self._optimizers:
            every = [parameter for group in optimizer.param_groups for parameter in group["params"]]
            if not optimizer.state and all(parameter.grad is None for parameter in every):
                optimizer_state.initialise(optimizer, [parameter for parameter in every if parameter.requires_grad])
        return self.state_dict_for(None)

    def state_dict_for(self, keys: Collection[str] | None) -> dict[str, Any]:
        """Return the state, or the values to be filled in from a checkpoint with these keys (`Fillable`).

        Raises:
            ValueError: as for the class; or the checkpoint has the state of another optimizer.
        """
        names = self._names()
        own = [key.removeprefix("optimizer.") for key in keys or () if key.startswith("optimizer.")]
        parts = (
            optimizer_state.taken(optimizer, names) if keys is None else optimizer_state.ready(optimizer, names, own)
            for optimizer in self._optimizers
        )
        return {"model": self._model(), "optimizer": dict(chain.from_iterable(part.items() for part in parts))}

    @override
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        # Each model takes its own entries; torch reports missing ones.
        names = self._names()
        for optimizer in self._optimizers:
            optimizer_state.put(optimizer, names, state_dict["optimizer"])
        for model in self._models:
            known = Names(model)
            keys = {key: known.plain(key) for key in model.state_dict()}
            found = state_dict["model"]
            model.load_state_dict({key: found[name] for key, name in keys.items() if name in found})

    def _model(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for model in self._models:
            known = Names(model)
            found |= {known.plain(key): value for key, value in model.state_dict().items()}
        return found

    def _names(self) -> dict[torch.nn.Parameter, str]:
        names = parameters(self._models)
        owned(self._optimizers, names)
        return names
