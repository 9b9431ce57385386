"""Count the floating-point operations of a step, and the model FLOPs utilization (MFU) of the device.

Source: A. Chowdhery et al., "PaLM: Scaling Language Modeling with Pathways" (2022), appendix B.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

from torch.utils.flop_counter import FlopCounterMode

if TYPE_CHECKING:
    from collections.abc import Callable

PEAKS: tuple[tuple[frozenset[str], float], ...] = tuple(
    (frozenset(words.split()), teraflops * 1e12)
    for words, teraflops in (
        ("GB300", 2500.0),  # NVIDIA GB300 NVL72, one of its GPUs
        ("B300", 2250.0),  # NVIDIA HGX B300
        ("GB200", 2500.0),  # NVIDIA GB200 NVL72, one of its GPUs
        ("B200", 2250.0),  # NVIDIA HGX B200
        ("GH200", 989.4),  # NVIDIA GH200
        ("H200 NVL", 835.5),  # NVIDIA H200
        ("H200", 989.4),
        ("H100 NVL", 835.5),  # NVIDIA H100
        ("H100 PCIe", 756.4),
        ("H100", 989.4),
        ("H800 PCIe", 756.4),
        ("H800", 989.4),
        ("H20", 148.0),
        ("A100", 312.0),  # NVIDIA A100
        ("A800", 312.0),
        ("A40", 149.7),  # NVIDIA A40
        ("A30", 165.0),  # NVIDIA A30
        ("A10", 125.0),  # NVIDIA A10
        ("L40S", 362.0),  # NVIDIA L40S
        ("L40", 181.0),  # NVIDIA L40
        ("L4", 121.0),  # NVIDIA L4
        ("V100", 125.0),  # NVIDIA V100, fp16: it has no bf16
        ("T4", 65.0),  # NVIDIA T4, fp16: it has no bf16
        ("RTX PRO 6000 Q", 438.9),  # NVIDIA RTX PRO Blackwell white paper, Max-Q
        ("RTX PRO 6000", 503.8),  # the same: Workstation, and Server within a per cent
        ("4090", 165.2),  # NVIDIA Ada architecture white paper, with accumulation in fp32
        ("3090", 71.0),  # NVIDIA Ampere GA102 white paper, with accumulation in fp32
        ("MI250X", 191.5),  # AMD Instinct MI250X: torch sees each of its two dies as a device
        ("MI300X", 1307.4),  # AMD Instinct MI300X
        ("MI325X", 1307.4),  # AMD Instinct MI325X
    )
)
"""Dense bf16 FLOP/s from the vendors' data sheets (most print the double, "with sparsity"). The first entry whose words all occur in a device's name."""

RELATIVE_PEAKS = {"bf16": 1.0, "fp16": 1.0, "tf32": 0.5, "fp8": 2.0}
"""The peak of a number format relative to that of bf16. All of PEAKS that support the format have it. Other units compute fp32."""

PARTS = frozenset({"MIG", "Laptop", "D", "Ti"})
"""The peak of devices with such a word in their name cannot be determined from the name."""


def peak(device: str, number_format: str = "bf16") -> float | None:
    """Return the dense FLOP/s of a device in a number format (fp16 if it has no bf16), by torch's name for it. None: unknown.

    A part of a device (MIG) is not known either.

    Args:
        device: the name of the device.
        number_format: the format of matrix products, as `Precision` names them.
    """
    words, relative = set(re.split(r"[\s_-]+", device)), RELATIVE_PEAKS.get(number_format)
    if words & PARTS or relative is None:
        return None
    return next((value * relative for named, value in PEAKS if named <= words), None)


def counted(act: Callable[[], Any]) -> int:
    """Count the floating-point operations of `act`: multiplications and additions count one each.

    It runs once, including a backward pass if it has one. Operations with a formula in torch count: matrix products, convolutions and
    attention, which is all but a few per cent of a model. Custom kernels (Triton, CUDA) without a formula and compiled graphs do not count: count
    before `torch.compile`. Recomputation by activation checkpointing counts twice, which gives hardware utilization: count without it.

    Raises:
        ValueError: nothing was counted.
    """
    counter = FlopCounterMode(display=False)
    with counter:
        act()
    if total := int(counter.get_total_flops()):
        return total
    raise ValueError(
        "no floating-point operation was counted: give a function that does a whole step, before torch.compile, or use `transformer`"
    )


def transformer(parameters: int, layers: int, width: int, sequence: int) -> int:
    """Return the floating-point operations per training token of a decoder: 6 N + 12 L H Q T of the source.

    Args:
        parameters: the parameters of the model, without embeddings that are only looked up.
        layers: the number of layers.
        width: heads x size of a head.
        sequence: the tokens of a sequence.

    Raises:
        ValueError: a number is not positive.
    """
    given = {"parameters": parameters, "layers": layers, "width": width, "sequence": sequence}
    for name, value in given.items():
        if value < 1:
            raise ValueError(f"{name} must be from 1 on, got {value}")
    return 6 * parameters + 12 * layers * width * sequence


def utilisation(flops: float, seconds: float, peak: float) -> float:
    """Return the share of a device's peak that a step reaches.

    Args:
        flops: the operations of a step on this device.
        seconds: the time of a step.
        peak: the peak of the device in FLOP/s.

    Raises:
        ValueError: a number is not positive.
    """
    for name, value in (("flops", flops), ("seconds", seconds), ("peak", peak)):
        if not 0 < value < math.inf:
            raise ValueError(f"{name} must be positive, got {value}")
    return flops / (seconds * peak)
