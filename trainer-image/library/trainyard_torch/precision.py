"""In which number format a model computes: torch's autocast and gradient scaler, chosen together and checked.

Weights and the optimizer stay in fp32. There is no silent fallback: a format that the device does not support is an error.

Sources:
    P. Micikevicius et al., "Mixed Precision Training", ICLR 2018: the scale of the loss in fp16.
    P. Micikevicius et al., "FP8 Formats for Deep Learning", 2022.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch

from trainyard_torch.gradient_unscaling import Unscaled
from trainyard_torch.number_formats import checked, fits_fp8, usual

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager

    from torch import Tensor, nn
    from torch.optim import Optimizer

LEAST_SCALE = 2.0**-24
"""Below, a loss of 1 is 0 in fp16: gradients that are still not finite were NaN from the beginning."""


class Precision:
    """The number format of a training. Create it before the model is used: it sets the process-wide matmul precision of fp32.

        precision = Precision("fp16", device)
        model = precision.convert(model)
        ...
        with precision.autocast():
            loss = compute(model(x), y)
        precision.backward(loss)
        precision.unscale(optimizer)              # only where gradients are clipped or looked at
        done = precision.step(optimizer)

    Args:
        name: "fp32": nothing less, convolutions neither. "tf32": fp32 with matrices in TF32. "bf16", "fp16": matrices and convolutions in
            16 bits; fp16 with a scaled loss. "fp8": as bf16, and linear layers in fp8, by torchao. None: "tf32" where the device has it, else
            "fp32".
        device: where the model is.
        init_scale: fp16: what the loss is multiplied with at first.
        growth_interval: fp16: steps without an overflow until the scale is doubled.

    Attributes:
        name: the one that was chosen.
        dtype: in which matrices are multiplied; for FSDP2's `MixedPrecisionPolicy(param_dtype=…)`, which is used instead of autocast.

    Raises:
        ValueError: there is no such format, or the device does not have it.
    """

    def __init__(
        self, name: str | None, device: torch.device | str, *, init_scale: float = 65536.0, growth_interval: int = 2000
    ) -> None:
        if not 0 < init_scale < float("inf") or growth_interval < 1:
            raise ValueError(f"init_scale and growth_interval must be positive, not {init_scale} and {growth_interval}")
        device = torch.device(device)
        if device.type == "cuda" and not torch.cuda.is_available():
            raise ValueError(
                "device is cuda, and this process sees no GPU: ask for one in the pod's resources, or take cpu"
            )
        # gpu-only: formats by compute capability, TF32 by default
        cuda = device.type == "cuda" and torch.version.hip is None
        capability = torch.cuda.get_device_capability(device) if cuda else None
        self.name = name = checked(usual(device.type, capability) if name is None else name, device.type, capability)
        self.dtype = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.bfloat16}.get(name, torch.float32)
        self._device = device.type
        # Both count in the backward pass too, which is outside of any `with`. Not the settings that torch 2.9 has brought: they may not
        # be mixed with these, which torch.compile reads.
        torch.set_float32_matmul_precision("highest" if name == "fp32" else "high")
        torch.backends.cudnn.allow_tf32 = name != "fp32"
        scaled = name == "fp16"
        self._scaler = torch.amp.GradScaler(
            device.type, init_scale=init_scale, growth_interval=growth_interval, enabled=scaled
        )
        self._unscaled: Unscaled | None = None

    @property
    def scale(self) -> float:
        """What the loss is multiplied with now; 1 but for fp16."""
        return float(self._scaler.get_scale())

    def convert(self, model: nn.Module) -> nn.Module:
        """The model with its linear layers in fp8, where that is the format; else as it is. Before DDP, FSDP2 or torch.compile wrap it.

        Layers whose sides are not multiples of 16 stay in bf16.

        Raises:
            ValueError: torchao is not installed, or no layer can be converted.
        """
        return with_float8(model) if self.name == "fp8" else model

    def autocast(self) -> AbstractContextManager[Any]:
        """For the forward pass and the loss; not for the backward pass."""
        if self.dtype == torch.float32:
            return nullcontext()
        cast: AbstractContextManager[Any] = torch.autocast(self._device, self.dtype)
        return cast

    def outside(self) -> AbstractContextManager[Any]:
        """Disable autocast for a backward pass that starts inside `autocast`: torch recommends to leave autocast before."""
        if not torch.is_autocast_enabled(self._device):
            return nullcontext()
        left: AbstractContextManager[Any] = torch.autocast(self._device, enabled=False)
        return left

    def backward(self, loss: Tensor) -> None:
        """Compute gradients: of the scaled loss in fp16."""
        self._scaler.scale(loss).backward()

    def unscale(self, optimizer: Optimizer) -> None:
        """Divide gradients by the scale, so that they can be clipped or looked at; once before `step`, which does it else itself.

        Raises:
            RuntimeError: that was done already in this step.
        """
        if self._unscaled:
            raise RuntimeError("unscale() was called already in this step: call it once, before step()")
        if self._scaler.is_enabled():
            self._unscaled = Unscaled(self._scaler, optimizer)

    def step(self, optimizer: Optimizer) -> bool:
        """Take a step of the optimizer.

        Returns:
            Whether it was taken: in fp16, gradients that are not finite are left out, and the scale is halved. The learning rate's
            schedule, progress and averaging go on as if it had been. With one optimizer for all of the model, it is the same on all processes
            of DDP, FSDP2 and tensor parallel, also together; over pipeline stages take bf16.

        Raises:
            FloatingPointError: gradients are not finite at any scale.
        """
        if not self._scaler.is_enabled():
            optimizer.step()
            return True
        before = self.scale
        unscaled, self._unscaled = self._unscaled or Unscaled(self._scaler, optimizer), None
        done = unscaled.step()
        after = self.scale
        if after < LEAST_SCALE:
            raise FloatingPointError(
                f"gradients are not finite at a loss scale of {before:g} either: the loss is NaN or infinite by itself; go back to "
                "a checkpoint with a lower learning rate, or take bf16"
            )
        return done

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint has to hold: the loss scale and its history. Empty unless the format is fp16."""
        # torch creates the scale on first use, so there may be none yet.
        state: dict[str, Any] = self._scaler.state_dict()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` gave."""
        if self._scaler.is_enabled():
            self._scaler.load_state_dict(dict(state))


def with_float8(model: nn.Module) -> nn.Module:
    """The model with linear layers of torchao, which multiply in fp8 with a scale for each tensor. Weights stay as they are.

    Raises:
        ValueError: torchao is not installed, or no layer can be converted.
    """
    linear = [layer for layer in model.modules() if isinstance(layer, torch.nn.Linear)]
    if not any(fits_fp8(layer.out_features, layer.in_features) for layer in linear):
        raise ValueError("fp8 needs a linear layer whose sides are multiples of 16, and the model has none: use bf16")
    try:
        # Stock torch has the format, and its multiplication in private only (torch._scaled_mm).
        from torchao.float8 import convert_to_float8_training  # noqa: PLC0415
    except ImportError as error:
        raise ValueError("fp8 is done by torchao, which is not installed: pip install torchao, or take bf16") from error
    # gpu-only: layers in fp8
    converted: nn.Module = convert_to_float8_training(
        model,
        module_filter_fn=lambda layer, _name: fits_fp8(
            getattr(layer, "out_features", 1), getattr(layer, "in_features", 1)
        ),
    )
    return converted
