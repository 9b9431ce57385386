"""Enable NCCL's flight recorder if no agent has: it records each rank's last collectives, for hangs. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

FOLDER = "TRAINYARD_FLIGHT_RECORDER"
FILES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
"""The variables for the prefix of a rank's file, newer and older name. The rank is appended."""
ON = ((("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"), "2000"), (("TORCH_NCCL_DUMP_ON_TIMEOUT",), "1"))
"""The values that the agent sets. If one setting has two names, a user sets one, and torch reads the newer first."""
RENAMED_IN = (2, 9)
"""The release of torch that knows the newer names, and warns of the older ones."""


def flight_recorder(environ: Mapping[str, str], release: str) -> dict[str, str]:
    """Return the missing variables for a record of the last 2,000 collectives, which ranks write after NCCL's timeout.

    Set them before the process group is created: `os.environ.update(flight_recorder(os.environ, torch.__version__))`. Under Trainyard's
    agent nothing is missing, and the user's values stay. The files are in the existing folder
    TRAINYARD_FLIGHT_RECORDER, or at torch's default (`/tmp/nccl_trace_rank_0` and so on).

    Args:
        environ: the environment.
        release: of torch, such as "2.6.0+cu126". It decides which name of a setting is used.
    """
    at = 0 if tuple(map(int, release.split(".")[:2])) >= RENAMED_IN else -1
    missing = {names[at]: value for names, value in ON if not any(name in environ for name in names)}
    folder = environ.get(FOLDER)
    if folder and not any(environ.get(name) for name in FILES):
        missing[FILES[at]] = f"{folder.rstrip('/')}/rank_"
    return missing
