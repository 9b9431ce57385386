"""Access the agent's package, if it is installed: a program runs without it, too."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def agent() -> Any:
    """Return the module `trainyard_agent`, or None if it is not installed. Its `progress` and `must_stop` talk to this pod's agent."""
    try:
        return import_module("trainyard_agent")
    except ImportError:
        return None
