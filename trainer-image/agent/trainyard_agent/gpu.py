"""Tell whether this worker has GPUs. What a program sees of them, only its own library can tell."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

REQUESTED_VARIABLE = "TRAINYARD_ACCELERATORS_PER_REPLICA"
"""The accelerators that the main container requested; not set where it requested none, or the operator cannot count them."""
DEVICES = ("dev/nvidiactl", "dev/kfd", "dev/dxg")
"""Of NVIDIA, of AMD, and of Windows' Linux. The devices of a resource claim appear here, and not in the variable."""


def has_gpu(environment: Mapping[str, str], root: Path = Path("/")) -> bool:
    """Return whether the worker requested accelerators, or has the device of a GPU driver. `root`: the root of the file system."""
    requested = environment.get(REQUESTED_VARIABLE, "")
    counted = requested.isascii() and requested.isdecimal() and bool(requested.strip("0"))
    return counted or any((root / device).exists() for device in DEVICES)
