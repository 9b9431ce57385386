"""The operator's memory limit as a metric: an alert compares it with the memory that the process uses."""

from pathlib import Path

from prometheus_client import CollectorRegistry, Gauge

LIMIT_FILE = Path("/sys/fs/cgroup/memory.max")
"""Of the container, with cgroup v2; it holds a number of bytes, or `max`."""


def register_memory_limit(registry: CollectorRegistry, file: Path = LIMIT_FILE) -> None:
    """Export the memory limit of the process; 0 if there is none, or if it cannot be read."""
    Gauge(
        "trainyard_memory_limit_bytes",
        "The memory limit of the operator's container; 0 without one",
        registry=registry,
    ).set(_limit(file))


def _limit(file: Path) -> int:
    try:
        text = file.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return 0
    return int(text) if text.isdecimal() else 0
