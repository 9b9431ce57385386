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


def flight_recorder(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the missing variables for a record of the last 2,000 collectives, which ranks write after NCCL's timeout.

    Set them before the process group is created: `os.environ.update(flight_recorder(os.environ))`. Under Trainyard's
    agent nothing is missing, and the user's values stay. The files are in the existing folder
    TRAINYARD_FLIGHT_RECORDER, or at torch's default (`/tmp/nccl_trace_rank_0` and so on).
    """
    missing = {name: value for names, value in ON if not any(name in environ for name in names) for name in names}
    folder = environ.get(FOLDER)
    if folder and not any(environ.get(name) for name in FILES):
        missing.update(dict.fromkeys(FILES, f"{folder.rstrip('/')}/rank_"))
    return missing
