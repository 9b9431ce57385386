"""`spec.scheduling`: how the pods of a job get their nodes, and how their ranks follow from that."""

from enum import StrEnum
from typing import Final

from pydantic import Field, JsonValue

from trainyard.api.base import Model, rule
from trainyard.api.names import MAX_QUALIFIED, QUALIFIED, ObjectName
from trainyard.api.recovery import DAY

PARTIAL_TIMEOUT_SECONDS = 300
"""Longer than an autoscaler usually takes between two nodes: each node that the group gets starts the timeout again."""
PLACED_FRAMEWORKS: Final = ("torch", "deepspeed", "megatron", "jax", "horovod")
"""The frameworks whose ranks are numbers that each process gets, and that may be on any worker. Rank 0 is always on worker 0."""
RANKS_PLACED: Final = "self.?scheduling.?rankOrder.orValue('index') == 'placement'"
OF_PODS = ("queue", "priorityClassName", "topology")
"""The optional fields that all pods of a group share."""


class GangScheduler(StrEnum):
    """A scheduler that places the pods of a PodGroup all or none, by the value of `scheduling.gang`."""

    NATIVE = "native"
    VOLCANO = "volcano"
    COSCHEDULING = "coscheduling"


class Gang(StrEnum):
    """Who makes sure that a group gets all of its nodes, or none."""

    AUTO = "auto"
    NONE = "none"
    NATIVE = "native"
    VOLCANO = "volcano"
    COSCHEDULING = "coscheduling"


class RankOrder(StrEnum):
    """What decides which worker has which ranks."""

    PLACEMENT = "placement"
    INDEX = "index"


class Topology(Model):
    """The domain of nodes, for example a rack, in which all members of the group run."""

    key: str = Field(min_length=1, max_length=MAX_QUALIFIED, pattern=f"^{QUALIFIED}$")
    """The label of nodes whose value names the domain, for example topology.kubernetes.io/zone."""
    required: bool = False
    """Whether the members run nowhere else. Otherwise the scheduler prefers one domain."""


class ChannelAllocation(StrEnum):
    """How many channels of its domain a worker gets."""

    SINGLE = "Single"
    ALL = "All"


class ComputeDomain(Model):
    """A ComputeDomain of NVIDIA's DRA driver, by which workers on several nodes share memory over NVLink."""

    allocation_mode: ChannelAllocation | None = None
    """The channels of each worker: Single or All. Not set: the default of the driver, which is one."""


class Scheduling(Model):
    """How the pods of the job get their nodes, and how their ranks follow from that."""

    gang: Gang = Gang.AUTO
    """The scheduler that places the group all or none, through a PodGroup. It is Kubernetes itself (native), Volcano, or
    scheduler-plugins (coscheduling). auto: the first one in `gangs.schedulers` of the operator's chart that the cluster has, or
    none. An elastic group starts with its smallest size."""
    queue: ObjectName | None = None
    """The queue from which the job gets its resources: a LocalQueue of Kueue, or with a gang of Volcano a queue of Volcano. In a queue of
    Kueue the job waits until there is quota for all of its pods. Kueue may take the quota back: then the job stops with a checkpoint, and
    waits again. The label `kueue.x-k8s.io/queue-name` names a queue of Kueue, too. Not set: none of Kueue, and the default one of Volcano."""
    priority_class_name: ObjectName | None = None
    """The PriorityClass of the pods and of their PodGroup. It is the priority in a queue of Kueue, too, unless the label
    `kueue.x-k8s.io/priority-class` names a WorkloadPriorityClass. Not set: that of the template."""
    topology: Topology | None = None
    """The domain of nodes in which all members run, next to each other. Not set: anywhere."""
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
    compute_domain: ComputeDomain | None = None
    """Create a ComputeDomain for the workers of this job, and give each of them a channel of it. For systems with NVLink between nodes, such
    as GB200 NVL72. It needs NVIDIA's DRA driver, and `computeDomains.enabled` in the chart. Not set: none."""

    @property
    def of_pods(self) -> dict[str, object]:
        """What the user has set of the fields that all pods of a group share."""
        return self.model_dump(
            mode="json", exclude_defaults=True, exclude={"partial_timeout_seconds", "rank_order", "compute_domain"}
        )


def scheduling_rules() -> list[JsonValue]:
    """Return the rules of the spec about `scheduling` and what else it has to fit."""
    domain, before = (f"{each}.?scheduling.?computeDomain" for each in ("self", "oldSelf"))
    same = "self.scheduling.gang == oldSelf.scheduling.gang" + "".join(map(_unchanged, OF_PODS))
    return [
        rule(
            f"({same}) || self.lifecycle.suspend || oldSelf.lifecycle.suspend",
            "gang, queue, priorityClassName and topology can be changed only while the job is suspended; set lifecycle.suspend to true first",
            fieldPath=".scheduling",
            reason="FieldValueForbidden",
        ),
        rule(
            # A PodGroup and its pods must have one priority.
            "!has(self.scheduling.priorityClassName) || !has(self.template.spec.priorityClassName)"
            " || self.scheduling.priorityClassName == self.template.spec.priorityClassName",
            "scheduling.priorityClassName and template.spec.priorityClassName are different; leave one of them out",
            fieldPath=".scheduling.priorityClassName",
        ),
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


def _unchanged(field: str) -> str:
    new, old = f"self.scheduling.{field}", f"oldSelf.scheduling.{field}"
    return f" && has({new}) == has({old}) && (!has({new}) || {new} == {old})"
