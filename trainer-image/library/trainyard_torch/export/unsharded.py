"""Make the unsharded model for tracing: on the CPU, for inference, separate from the trained one."""

from __future__ import annotations

import copy
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from trainyard_torch.checkpoint.loader import reason
from trainyard_torch.export.record import ExportError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import nn

    from trainyard_torch.export.weights import Weights


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the model inside of DDP and torch.compile."""
    while True:
        if isinstance(model, DistributedDataParallel):
            model = model.module
        elif isinstance(inner := getattr(model, "_orig_mod", None), torch.nn.Module):
            model = inner
        else:
            return model


def unsharded_model(
    models: Sequence[nn.Module], model_factory: Callable[[], nn.Module] | None, weights: Weights
) -> nn.Module:
    """Return the model with its weights, on the CPU, for inference. The trained model does not change.

    Raises:
        ExportError: it is sharded and there is no `model_factory`, or the factory fails.
    """
    if model_factory is None:
        if weights.spread or len(models) > 1:
            raise ExportError(
                "a program needs the model in one piece, and this one is spread over processes: give model_factory, a function that makes it as it is in one"
            )
        made = _copied(unwrapped(models[0]))
    else:
        try:
            made = model_factory()
        except Exception as error:
            raise ExportError(f"model_factory() failed: {reason(error)}") from error
        try:
            made.load_state_dict(dict(weights.state), strict=True, assign=True)
        except RuntimeError as error:
            found = " ".join(str(error).split())[:300]
            raise ExportError(f"what model_factory() makes is not the model that was trained: {found}") from None
    for name, tensor in chain(made.named_parameters(), made.named_buffers()):
        if tensor.is_meta or isinstance(tensor, DTensor):
            raise ExportError(
                f"{name} has no values in what model_factory() makes: make it on the CPU, as it is in one process"
            )
    return made.eval()


def _copied(model: nn.Module) -> nn.Module:
    """Return a copy of the model with the same values; on the CPU it shares their memory."""
    memo: dict[int, Any] = {
        id(each): torch.nn.Parameter(each.detach().cpu(), requires_grad=False) for each in model.parameters()
    }
    memo.update((id(each), each.detach().cpu()) for each in model.buffers())
    try:
        return copy.deepcopy(model, memo)
    except Exception as error:
        raise ExportError(
            f"{type(model).__name__} cannot be copied ({reason(error)}): give model_factory, a function that makes it"
        ) from error
