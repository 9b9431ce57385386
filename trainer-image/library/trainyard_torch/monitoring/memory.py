"""Read the memory of this process on its device and on the host."""

from __future__ import annotations

import os
from pathlib import Path

import torch


def memory(device: torch.device) -> dict[str, float]:
    """Return bytes: `host`, and on a GPU `allocated` by tensors, `reserved` by torch, and `peak`, the maximum of `allocated`.

    Unknown values are omitted.
    """
    found: dict[str, float] = {}
    try:
        resident = Path("/proc/self/statm").read_text().split()[1]
        found["host"] = float(int(resident) * os.sysconf("SC_PAGE_SIZE"))
    except (OSError, ValueError, IndexError):
        pass
    if device.type == "cuda":
        # gpu-only: memory of the device
        found["allocated"] = float(torch.cuda.memory_allocated(device))
        found["reserved"] = float(torch.cuda.memory_reserved(device))
        found["peak"] = float(torch.cuda.max_memory_allocated(device))
    return found
