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
"""Those whose versions are told, where they are installed."""


def environment(environ: Mapping[str, str], world_size: int) -> dict[str, Any]:
    """What stands in the record.

    Args:
        environ: with what the operator says of the job, and TRAINYARD_IMAGE where somebody has set it.
        world: processes of the training.
    """
    job_attempt = JobAttempt.of(environ)
    # To ask for a name would open a GPU that nobody uses.
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
