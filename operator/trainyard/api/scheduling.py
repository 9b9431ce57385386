"""`spec.scheduling`: where workers run, and how their ranks follow from that."""

from enum import StrEnum
from typing import Final

from trainyard.api.base import Model

PLACED_FRAMEWORKS: Final = ("torch", "deepspeed", "megatron", "jax", "horovod")
"""The frameworks whose ranks are numbers that each process gets, and that may be on any worker. Rank 0 is always on worker 0."""


class RankOrder(StrEnum):
    """What decides which worker has which ranks."""

    PLACEMENT = "placement"
    INDEX = "index"


class Scheduling(Model):
    """Where workers run, and how their ranks follow from that."""

    rank_order: RankOrder | None = None
    """Which worker has which ranks. placement: workers of one node, rack and block have consecutive ranks, so that neighbours
    communicate over short ways. The order is found when all workers of a new group have started, and stays while the group keeps pods.
    Rank 0 is always on worker 0. The ranks wait for it, so it needs the agent. index: worker 0 has the first ranks, worker 1 the next
    ones. Not set: placement if the operator reads the labels of nodes, or if a tensor parallel group spans several workers; else index."""
