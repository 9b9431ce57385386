"""The agent's package, where there is one: a program runs without it too."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def agent() -> Any:
    """The module `trainyard_agent`, whose `progress` and `must_stop` speak to the agent of this pod; None where it is not installed."""
    try:
        return import_module("trainyard_agent")
    except ImportError:
        return None
