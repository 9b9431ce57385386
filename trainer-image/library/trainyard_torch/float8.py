"""Compute linear layers in fp8, by torchao.

Stock torch has the types, but its multiplication only as a private function (torch._scaled_mm).
"""

from __future__ import annotations

import logging
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch

from trainyard_torch.number_formats import fits_fp8

if TYPE_CHECKING:
    from collections.abc import Collection

    from torch import nn

Scaling = Literal["tensorwise", "rowwise"]
"""How many values share a scale: a whole matrix, or each of its rows, which costs more time and loses less to outliers."""

logger = logging.getLogger(__name__)


def with_float8(model: nn.Module, *, scaling: Scaling = "tensorwise", skip: Collection[str] | None = None) -> nn.Module:
    """Return the model with torchao's linear layers, which multiply in fp8. Weights stay as they are.

    Layers whose sides are not multiples of 16 stay in bf16. If the model runs without torch.compile, a warning is logged once: the conversions
    are kernels of their own then, and slower than bf16.

    Args:
        model: the whole model, before DDP, FSDP2, pipeline stages and torch.compile.
        scaling: "tensorwise", or "rowwise" (from Hopper on).
        skip: names of linear layers that stay in bf16, with * for any text. None: the last linear layer of the model, which is the output
            layer of most models: its error goes into the loss directly.

    Raises:
        ValueError: `scaling` is unknown, a name of `skip` fits no linear layer, torchao is not installed, or no layer can be converted.
    """
    if scaling not in get_args(Scaling):
        raise ValueError(f"scaling must be one of {', '.join(get_args(Scaling))}, not {scaling!r}")
    chosen = _converted(model, skip)
    try:
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training  # noqa: PLC0415
    except ImportError as error:
        raise ValueError("fp8 is done by torchao, which is not installed: pip install torchao, or take bf16") from error
    # gpu-only: layers in fp8
    converted: nn.Module = convert_to_float8_training(
        model,
        module_filter_fn=lambda _layer, name: name in chosen,
        config=Float8LinearConfig.from_recipe_name(scaling),
    )
    warn_if_eager(converted)
    return converted


def _converted(model: nn.Module, skip: Collection[str] | None) -> set[str]:
    """Return the names of the layers to convert."""
    linear = {name: layer for name, layer in model.named_modules() if isinstance(layer, torch.nn.Linear)}
    patterns = list(linear)[-1:] if skip is None else list(skip)
    if unknown := [each for each in patterns if not any(fnmatchcase(name, each) for name in linear)]:
        raise ValueError(f"skip: no linear layer is named {unknown[0]!r}; there are {', '.join(linear) or 'none'}")
    chosen = {
        name
        for name, layer in linear.items()
        if fits_fp8(layer.out_features, layer.in_features) and not any(fnmatchcase(name, each) for each in patterns)
    }
    if not chosen:
        raise ValueError(
            "fp8 needs a linear layer whose sides are multiples of 16, and the model has none but those to skip "
            f"({', '.join(patterns) or 'none'}): use bf16"
        )
    return chosen


def warn_if_eager(model: nn.Module) -> None:
    """Log a warning at the model's first forward pass, unless the model or a part of it is compiled."""

    def check(module: nn.Module, _inputs: Any) -> None:
        if torch.compiler.is_compiling():
            return
        handle.remove()
        # Private, and all that `Module.compile` leaves.
        if not any(part._compiled_call_impl is not None for part in module.modules()):  # noqa: SLF001
            logger.warning(
                "fp8 without torch.compile is slower than bf16: compile the model (trainyard_torch.compile_model), or take bf16"
            )

    handle = model.register_forward_pre_hook(check)
