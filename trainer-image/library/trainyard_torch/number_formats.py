"""Which number formats a device supports. Pure."""

from __future__ import annotations

from typing import Literal, cast, get_args

Format = Literal["fp32", "tf32", "bf16", "fp16", "fp8"]
NEEDED: dict[Format, tuple[int, int]] = {"tf32": (8, 0), "bf16": (8, 0), "fp16": (7, 0), "fp8": (8, 9)}
"""The lowest compute capability of NVIDIA GPUs with hardware support (CUDA C++ Programming Guide, table of capabilities)."""
GENERATION = {(7, 0): "Volta", (8, 0): "Ampere", (8, 9): "Ada and Hopper"}


def checked(name: str, device: str, capability: tuple[int, int] | None = None) -> Format:
    """Return the format of this name, if the device supports it.

    Args:
        name: one of `Format`.
        device: "cpu" or "cuda", as torch names device types.
        capability: the compute capability of a CUDA device. None for AMD GPUs, whose generations are not distinguished here.

    Raises:
        ValueError: the format is unknown, or the device does not support it. There is no fallback.
    """
    known = get_args(Format)
    if name not in known:
        raise ValueError(f"precision must be one of {', '.join(known)}, got {name!r}")
    found = cast("Format", name)
    if found == "fp32":
        return found
    if device == "cpu":
        if found in ("tf32", "fp8"):
            raise ValueError(f"precision {found} is of NVIDIA GPUs, and this device is a CPU: take bf16 or fp32")
        return found
    if device != "cuda":
        raise ValueError(f"precision {found} is known for cpu and cuda, and the device is {device!r}: take fp32")
    if capability is None:
        if found in ("tf32", "fp8"):
            raise ValueError(f"precision {found} is of NVIDIA GPUs, and this one is not: take bf16")
        return found
    least = NEEDED[found]
    if capability < least:
        others = [other for other in ("bf16", "fp16", "fp32") if NEEDED.get(other, (0, 0)) <= capability]
        raise ValueError(
            f"precision {found} needs compute capability {_dotted(least)} ({GENERATION[least]}) or later, and this GPU has "
            f"{_dotted(capability)}: take {' or '.join(others)}"
        )
    return found


def usual(device: str, capability: tuple[int, int] | None = None) -> Format:
    """Return the default format: fp32, with matrix products in TF32 if the device supports it.

    Args:
        device: as for `checked`.
        capability: as for `checked`.
    """
    return "tf32" if device == "cuda" and capability is not None and capability >= NEEDED["tf32"] else "fp32"


def fits_fp8(rows: int, columns: int) -> bool:
    """Return whether a matrix can be multiplied in fp8: the hardware needs multiples of 16."""
    return rows % 16 == 0 and columns % 16 == 0


def _dotted(capability: tuple[int, int]) -> str:
    return ".".join(map(str, capability))
