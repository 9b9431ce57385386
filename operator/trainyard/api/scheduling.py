"""`spec.scheduling`: how the pods of a job get their nodes."""

from pydantic import Field

from trainyard.api.base import Model
from trainyard.api.recovery import DAY

PARTIAL_TIMEOUT_SECONDS = 300
"""Longer than an autoscaler usually takes between two nodes: each node that the group gets starts the timeout again."""


class Scheduling(Model):
    """How the pods of the job get their nodes."""

    partial_timeout_seconds: int | None = Field(default=None, ge=0, le=DAY)
    """Seconds for which some members may hold nodes while the cluster has none for the others. They count from the last
    member that got one. After that all pods are deleted, so that other jobs can use the nodes, and are created again
    after a delay. An elastic group that can start with the nodes it has does so instead. 0: the pods are kept. Not set: 300,
    but 0 where workers may train without the others: with framework none, and where lost workers rejoin alone."""
