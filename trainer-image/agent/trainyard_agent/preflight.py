"""Whether the workers of an attempt are compared before training starts, and the command that does it in place of the ranks."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from trainyard_agent.program import PYTHON
from trainyard_agent.ranks import SettingError

PREFLIGHT_VARIABLE = "TRAINYARD_PREFLIGHT"
"""`quick` or `full` for an attempt whose nodes are to be compared. Not set, or empty: no comparison."""
PREFLIGHT_OPTION = "--preflight"
"""The option of the zipapp that runs one rank of the comparison."""
SECONDS_VARIABLE = "TRAINYARD_PREFLIGHT_SECONDS_FILE"
"""The file for how long it took, without the time that ranks waited for each other's pods."""
MODES = ("quick", "full")
PORT_DISTANCE = 10_000
"""Between the port of the training's own store and that of the comparison. The store of one may not be taken for the other's."""


def preflight_command(words: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """Return the command that each rank of the comparison runs; empty where there is none. `words`: the command of the job.

    It runs with the Python of the job, which has torch. Raises SettingError where the variable is wrong.
    """
    mode = environment.get(PREFLIGHT_VARIABLE, "")
    if not mode:
        return []
    if mode not in MODES:
        raise SettingError(f"{PREFLIGHT_VARIABLE} must be {' or '.join(MODES)}, got {mode!r}")
    python = words[0] if PYTHON.fullmatch(words[0]) else "python3"
    return [python, sys.argv[0], PREFLIGHT_OPTION, mode]


def read_seconds(file: Path) -> float | None:
    """Return how long the comparison took; None where none has written it."""
    try:
        return max(0.0, float(file.read_text()))
    except (OSError, ValueError):
        return None
