"""Choose the kind of device that a process trains on. A process never trains on the CPU where its container requested GPUs. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainyard_torch.environment_variables import whole_number

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trainyard_torch.process_info import ProcessInfo

REQUESTED_VARIABLE = "TRAINYARD_ACCELERATORS_PER_REPLICA"
"""The variable that holds the accelerators that this container requested. 0, empty or not set: none, and CPUs are right."""
HIDING_VARIABLES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
"""Variables that hide devices from a program. A program or a wrapper sets them."""
LOST_EXIT_CODE, UNSUPPORTED_EXIT_CODE = 94, 93
CPU_REMEDY = f'To train on CPUs all the same, call start(device="cpu") or set {REQUESTED_VARIABLE} to 0'


class AcceleratorLostError(RuntimeError):
    """torch sees fewer GPUs than this container requested. The process exits with code 94: another node may have them."""

    exit_code = LOST_EXIT_CODE


class NoGpuSupportError(RuntimeError):
    """The container requested accelerators, and torch is built without GPUs. The process exits with code 93: no node can help."""

    exit_code = UNSUPPORTED_EXIT_CODE


@dataclass(frozen=True, slots=True)
class VisibleGpus:
    """What torch sees.

    Attributes:
        count: the GPUs; of several MIG slices CUDA shows a process only one.
        supported: whether torch is built for GPUs at all.
        is_mig: whether the first GPU is a MIG slice.
    """

    count: int
    supported: bool
    is_mig: bool = False


def device_type(process: ProcessInfo, wanted: str | None, environ: Mapping[str, str], gpus: VisibleGpus) -> str:
    """Return "cuda" or "cpu".

    Args:
        process: this process, and how many there are in its container.
        wanted: the device that the program names, if any.
        environ: the environment.
        gpus: what torch sees.

    Raises:
        ValueError: the program, its environment or the number of processes does not fit the devices.
        AcceleratorLostError: devices that the container requested are missing.
        NoGpuSupportError: this torch cannot use any.
    """
    if wanted == "cpu":
        return "cpu"
    requested, ranks = whole_number(environ, REQUESTED_VARIABLE, 0), process.local_world_size
    if requested and not gpus.supported:
        raise NoGpuSupportError(
            f"this container requested {_devices(requested, 'accelerator')}, and this torch is built without GPU support: use an image whose "
            f"torch supports them. {CPU_REMEDY}"
        )
    if gpus.count < min(requested, ranks):
        raise _missing(requested, ranks, environ, gpus)
    if gpus.count < ranks and (gpus.count or wanted == "cuda"):
        raise ValueError(
            f"there are {ranks} processes in this pod and {gpus.count} GPUs: set processesPerReplica to {gpus.count or 'the number of GPUs'}, "
            'or ask for device="cpu"'
        )
    return "cuda" if gpus.count else "cpu"


def _missing(requested: int, ranks: int, environ: Mapping[str, str], gpus: VisibleGpus) -> ValueError | RuntimeError:
    """Return the error for GPUs that this container requested and torch does not see."""
    seen = f"torch sees {_devices(gpus.count, 'GPU')}, and this container requested {requested} for {ranks} processes"
    for name in HIDING_VARIABLES:
        if name in environ and len([each for each in environ[name].split(",") if each.strip()]) < min(requested, ranks):
            return ValueError(f"{seen}: {name}={environ[name]} hides the others. Remove that variable. {CPU_REMEDY}")
    if gpus.is_mig:
        return ValueError(f"{seen}: CUDA shows a process one MIG slice of several. Set processesPerReplica to 1")
    return AcceleratorLostError(
        f"{seen}: the others are lost, or the container runtime did not pass them on. {CPU_REMEDY}"
    )


def _devices(number: int, name: str) -> str:
    return f"{number} {name}" if number == 1 else f"{number} {name}s"
