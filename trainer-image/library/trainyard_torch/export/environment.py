"""What a model was trained and exported with: versions, devices, image and job. Only looks."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import torch

import trainyard_torch
from trainyard_torch.checkpoint.lineage import JobAttempt

if TYPE_CHECKING:
    from collections.abc import Mapping

PACKAGES = ("accelerate", "lightning", "numpy", "onnx", "onnxscript", "safetensors", "transformers")
"""Packages whose versions are recorded, if they are installed."""


def environment(environ: Mapping[str, str], world_size: int) -> dict[str, Any]:
    """Return the environment section of the record.

    Args:
        environ: the environment, with the operator's variables for the job, and TRAINYARD_IMAGE if it is set.
        world_size: the number of processes of the training.
    """
    job_attempt = JobAttempt.of(environ)
    # Querying the name would create a context on a GPU that is not in use.
    # gpu-only: the name of the device in a record
    device = torch.cuda.get_device_name() if torch.cuda.is_initialized() else platform.machine()
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "device": device,
        "world_size": world_size,
        "library": trainyard_torch.__version__,
        "packages": {name: found for name in PACKAGES if (found := _version(name))},
        "image": environ.get("TRAINYARD_IMAGE", ""),
        "job": {"name": environ.get("TRAINYARD_JOB_NAME", ""), "uid": job_attempt.job, "attempt": job_attempt.attempt},
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
