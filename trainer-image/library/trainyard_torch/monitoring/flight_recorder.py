"""NCCL's flight recorder where no agent has turned it on: what each rank's last collectives were, for when they hang. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

FOLDER = "TRAINYARD_FLIGHT_RECORDER"
FILES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
"""Variables for the prefix of a rank's file, newer and older name; the rank is appended."""
ON = ((("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"), "2000"), (("TORCH_NCCL_DUMP_ON_TIMEOUT",), "1"))
"""What the agent sets. Of two names for one thing a user sets one, and torch reads the newer first."""


def flight_recorder(environ: Mapping[str, str]) -> dict[str, str]:
    """What is still to be set so that ranks keep their last 2,000 collectives and write them down where one takes longer than NCCL's time-out.

    To be set before the process group is made: `os.environ.update(flight_recorder(os.environ))`. Below Trainyard's agent nothing is
    missing, and what is set by hand stays as it is. The files are where TRAINYARD_FLIGHT_RECORDER names a folder, which has to be there;
    else where torch writes them (`/tmp/nccl_trace_rank_0` and so on).
    """
    missing = {name: value for names, value in ON if not any(name in environ for name in names) for name in names}
    folder = environ.get(FOLDER)
    if folder and not any(environ.get(name) for name in FILES):
        missing.update(dict.fromkeys(FILES, f"{folder.rstrip('/')}/rank_"))
    return missing
