"""Say what to install where an image lacks the program of a command. Pure."""

from __future__ import annotations

import os
from collections.abc import Mapping

MPI = "an MPI, the same in the image of all workers (Debian: openmpi-bin)"
PACKAGES: Mapping[str, str] = {
    **dict.fromkeys(("mpirun", "mpiexec", "orterun", "prterun", "prted", "orted"), MPI),
    **dict.fromkeys(("mpiexec.hydra", "hydra_pmi_proxy", "hydra_bstrap_proxy"), MPI),
    "torchrun": "torch in the image",
    "deepspeed": "deepspeed in the image",
    **dict.fromkeys(("accelerate", "accelerate-launch"), "accelerate in the image"),
    **dict.fromkeys(("fabric", "lightning"), "lightning in the image"),
    "tune": "torchtune in the image",
    "horovodrun": "horovod in the image, or make the program itself the command",
    "ray": "ray in the image",
    **dict.fromkeys(("python", "python3"), "Python in the image"),
}
"""By the name of the program."""


def missing_fix(program: str) -> str:
    """Return what to install, as the end of a sentence; empty for a program that is not known here."""
    package = PACKAGES.get(os.path.basename(program))  # noqa: PTH119 - pathlib takes its time to import
    return f"; install {package}" if package else ""
