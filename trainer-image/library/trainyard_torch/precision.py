"""Choose the number format of a model: torch's autocast and gradient scaler, selected together and checked.

Weights and the optimizer stay in fp32. There is no silent fallback: a format that the device does not support is an error.

Sources:
P. Micikevicius et al., "Mixed Precision Training", ICLR 2018: the scale of the loss in fp16.
P. Micikevicius et al., "FP8 Formats for Deep Learning", 2022.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch

from trainyard_torch.float8 import Scaling, with_float8
from trainyard_torch.gradient_unscaling import Unscaled
from trainyard_torch.number_formats import checked, usual

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from contextlib import AbstractContextManager

    from torch import Tensor, nn
    from torch.optim import Optimizer

LEAST_SCALE = 2.0**-24
"""Below this scale, a loss of 1 is 0 in fp16. Gradients that are still not finite were NaN from the beginning."""


class Precision:
    """The number format of a training. Create it before the model is used: it sets the process-wide matmul precision of fp32.

        precision = Precision("fp16", device)
        model = precision.convert(model)
        ...
        with precision.autocast():
            loss = compute(model(x), y)
        precision.backward(loss)
        precision.unscale(optimizer)              # only if gradients are clipped or inspected
        done = precision.step(optimizer)

    Args:
        name: "fp32": also for convolutions. "tf32": fp32 with matrix products in TF32. "bf16", "fp16": matrix products and convolutions in
            16 bits; fp16 with a scaled loss. "fp8": as bf16, with linear layers in fp8 by torchao. None: "tf32" if the device supports it,
            else "fp32".
        device: the device of the model.
        init_scale: fp16: the initial scale of the loss.
        growth_interval: fp16: the number of steps without an overflow after which the scale doubles.

    Attributes:
        name: the chosen format.
        dtype: the type of matrix products. `shard(precision=…)` makes FSDP2 gather parameters in it.

    Raises:
        ValueError: the format is unknown, or the device does not support it.
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
        # Both also apply to the backward pass, which is outside of any `with`. The settings of torch 2.9 cannot be used: they may not
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
        """The current scale of the loss; always 1 except for fp16."""
        return float(self._scaler.get_scale())

    def convert(
        self, model: nn.Module, *, scaling: Scaling = "tensorwise", skip: Collection[str] | None = None
    ) -> nn.Module:
        """Return the model with its linear layers in fp8 if that is the format, else unchanged. Call it before DDP, FSDP2 or torch.compile.

        The arguments and errors are those of `float8.with_float8`: layers whose sides are not multiples of 16, and the last one, stay in bf16.
        """
        return with_float8(model, scaling=scaling, skip=skip) if self.name == "fp8" else model

    def autocast(self) -> AbstractContextManager[Any]:
        """Return the context for the forward pass and the loss, but not for the backward pass."""
        if self.dtype == torch.float32:
            return nullcontext()
        cast: AbstractContextManager[Any] = torch.autocast(self._device, self.dtype)
        return cast

    def outside(self) -> AbstractContextManager[Any]:
        """Return a context without autocast, for a backward pass that starts inside `autocast`: torch recommends it."""
        if not torch.is_autocast_enabled(self._device):
            return nullcontext()
        left: AbstractContextManager[Any] = torch.autocast(self._device, enabled=False)
        return left

    def backward(self, loss: Tensor) -> None:
        """Compute gradients of the loss; in fp16, of the scaled loss."""
        self._scaler.scale(loss).backward()

    def unscale(self, optimizer: Optimizer) -> None:
        """Divide gradients by the scale, so that they can be clipped or inspected. Call it at most once before `step`, which otherwise does it.

        Raises:
            RuntimeError: it was called already in this step.
        """
        if self._unscaled:
            raise RuntimeError("unscale() was called already in this step: call it once, before step()")
        if self._scaler.is_enabled():
            self._unscaled = Unscaled(self._scaler, optimizer)

    def step(self, optimizer: Optimizer) -> bool:
        """Take a step of the optimizer.

        Returns:
            Whether it was taken. In fp16, a step with gradients that are not finite is skipped, and the scale is halved. The learning rate's
            schedule, progress and averaging continue as if it had been taken. With one optimizer for the whole model, the result is the same on
            all processes of DDP, FSDP2 and tensor parallel, also combined. Use bf16 with pipeline stages.

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
        """Return the state for a checkpoint: the loss scale and its history. Empty unless the format is fp16."""
        # torch creates the scale on first use, so there may be none yet.
        state: dict[str, Any] = self._scaler.state_dict()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state of `state_dict`."""
        if self._scaler.is_enabled():
            self._scaler.load_state_dict(dict(state))
