"""`spec.scheduling`: where workers run, and how their ranks follow from that."""

from enum import StrEnum
from typing import Final

from pydantic import Field

from trainyard.api.base import Model
from trainyard.api.recovery import DAY

PARTIAL_TIMEOUT_SECONDS = 300
"""Longer than an autoscaler usually takes between two nodes: each node that the group gets starts the timeout again."""
PLACED_FRAMEWORKS: Final = ("torch", "deepspeed", "megatron", "jax", "horovod")
"""The frameworks whose ranks are numbers that each process gets, and that may be on any worker. Rank 0 is always on worker 0."""


class RankOrder(StrEnum):
    """What decides which worker has which ranks."""

    PLACEMENT = "placement"
    INDEX = "index"


class Scheduling(Model):
    """Where workers run, and how their ranks follow from that."""

    partial_timeout_seconds: int | None = Field(default=None, ge=0, le=DAY)
    """Seconds for which some members may hold nodes while the cluster has none for the others. They count from the last
    member that got one. After that all pods are deleted, so that other jobs can use the nodes, and are created again
    after a delay. An elastic group that can start with the nodes it has does so instead. 0: the pods are kept. Not set: 300,
    but 0 where workers may train without the others: with framework none, and where lost workers rejoin alone."""
    rank_order: RankOrder | None = None
    """Which worker has which ranks. placement: workers of one node, rack and block have consecutive ranks, so that neighbours
    communicate over short ways. The order is found when all workers of a new group have started, and stays while the group keeps pods.
    Rank 0 is always on worker 0. The ranks wait for it, so it needs the agent. index: worker 0 has the first ranks, worker 1 the next
    ones. Not set: placement if the operator reads the labels of nodes, or if a tensor parallel group spans several workers; else index."""
