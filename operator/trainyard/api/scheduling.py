"""`spec.scheduling`: where workers run, and how their ranks follow from that."""

from enum import StrEnum
from typing import Final

from pydantic import JsonValue

from trainyard.api.base import Model, rule

PLACED_FRAMEWORKS: Final = ("torch", "deepspeed", "megatron", "jax", "horovod")
"""The frameworks whose ranks are numbers that each process gets, and that may be on any worker. Rank 0 is always on worker 0."""


RANKS_PLACED: Final = "self.?scheduling.?rankOrder.orValue('index') == 'placement'"


class RankOrder(StrEnum):
    """What decides which worker has which ranks."""

    PLACEMENT = "placement"
    INDEX = "index"


class ChannelAllocation(StrEnum):
    """How many channels of its domain a worker gets."""

    SINGLE = "Single"
    ALL = "All"


class ComputeDomain(Model):
    """A ComputeDomain of NVIDIA's DRA driver, by which workers on several nodes share memory over NVLink."""

    allocation_mode: ChannelAllocation | None = None
    """The channels of each worker: Single or All. Not set: the default of the driver, which is one."""


class Scheduling(Model):
    """Where workers run, and how their ranks follow from that."""

    rank_order: RankOrder | None = None
    """Which worker has which ranks. placement: workers of one node, rack and block have consecutive ranks, so that neighbours
    communicate over short ways. The order is found when all workers of a new group have started, and stays while the group keeps pods.
    Rank 0 is always on worker 0. The ranks wait for it, so it needs the agent. index: worker 0 has the first ranks, worker 1 the next
    ones. Not set: placement if the operator reads the labels of nodes, or if a tensor parallel group spans several workers; else index."""
    compute_domain: ComputeDomain | None = None
    """Create a ComputeDomain for the workers of this job, and give each of them a channel of it. For systems with NVLink between nodes, such
    as GB200 NVL72. It needs NVIDIA's DRA driver, and `computeDomains.enabled` in the chart. Not set: none."""


def scheduling_rules() -> list[dict[str, JsonValue]]:
    """Return the rules of the spec on scheduling."""
    domain, before = (f"{each}.?scheduling.?computeDomain" for each in ("self", "oldSelf"))
    return [
        rule(
            # The domains as a whole, and texts of any length, would be too costly to compare.
            f"({domain}.hasValue() == {before}.hasValue()"
            f" && ({domain}.?allocationMode.orValue('') == 'All') == ({before}.?allocationMode.orValue('') == 'All'))"
            " || self.lifecycle.suspend || oldSelf.lifecycle.suspend",
            "scheduling.computeDomain can be changed only while the job is suspended; set lifecycle.suspend to true first",
            fieldPath=".scheduling",
            reason="FieldValueForbidden",
        ),
        rule(
            f"!({RANKS_PLACED}) || self.framework in [{', '.join(map(repr, PLACED_FRAMEWORKS))}]",
            "with this framework ranks follow the indexes of workers; leave scheduling.rankOrder out",
            fieldPath=".scheduling.rankOrder",
        ),
        rule(
            f"!({RANKS_PLACED}) || self.recovery.agent != 'none'",
            "the agents of the workers wait for the order of ranks; leave scheduling.rankOrder or recovery.agent out",
            fieldPath=".scheduling.rankOrder",
        ),
    ]
