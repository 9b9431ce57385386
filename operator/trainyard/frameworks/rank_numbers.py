"""The numbers by which libraries know a process. Pure."""

from enum import StrEnum


class RankNumber(StrEnum):
    """A number by which a library knows a process. The agent has the same list (`ranks.py`)."""

    RANK = "rank"
    WORLD_SIZE = "world-size"
    LOCAL_RANK = "local-rank"
    LOCAL_WORLD_SIZE = "local-world-size"
    WORKER = "worker"
    WORKERS = "workers"
    DEVICES = "devices"
    """The accelerators of the process, as `0,1`: its part of the worker's. Not set where their number is not known, or no multiple of the
    processes."""
    ENDPOINT = "endpoint"
    """The entry of the process in `PADDLE_TRAINER_ENDPOINTS`."""
