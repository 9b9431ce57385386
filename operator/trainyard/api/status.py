"""`status`: everything that a decision rests on stands here or on the pods, nothing in memory alone."""

from enum import StrEnum
from typing import Literal

from pydantic import Field, field_validator

from trainyard.api.base import MOST, MOST_ATTEMPTS, Model, Time
from trainyard.api.constants import MAX_REPLICAS
from trainyard.api.progress import MOST_STRAGGLERS, Goodput, Progress, Straggler
from trainyard.api.recovery import MOST_IN_A_WINDOW, Rung

MOST_WORDS = 1024
"""Letters of a reason."""
MOST_SUSPECTS = 16
"""Nodes that a job remembers. Where so many fail it, it is not the nodes."""
MOST_REPLACED = 64
"""Rows of workers of a group that got pods of their own since it was made. Beyond that it is made anew as a whole."""


class Phase(StrEnum):
    """One word for the state of the job, derived from the conditions, for people to read."""

    PENDING = "Pending"
    RUNNING = "Running"
    RESTARTING = "Restarting"
    SUSPENDED = "Suspended"
    COMPLETE = "Complete"
    FAILED = "Failed"


class ConditionType(StrEnum):
    """What can be true of a job; `kubectl wait --for=condition=…` takes each."""

    SCHEDULED = "Scheduled"
    RUNNING = "Running"
    RESTARTING = "Restarting"
    RESIZING = "Resizing"
    SCALING_LIMITED = "ScalingLimited"
    SUSPENDED = "Suspended"
    STRAGGLING = "Straggling"
    SUPERVISED = "Supervised"
    STALLED = "Stalled"
    COMPLETE = "Complete"
    FAILED = "Failed"


class Condition(Model):
    """A standard condition (KEP-1623)."""

    type: str = Field(max_length=316)
    """What the condition is about."""
    status: Literal["True", "False", "Unknown"]
    """Whether it holds."""
    reason: str = Field(min_length=1, max_length=MOST_WORDS)
    """Why, in one word that programs can rely on."""
    message: str = Field(default="", max_length=32768)
    """Why, for people."""
    last_transition_time: Time
    """When `status` last changed."""
    observed_generation: int = Field(default=0, ge=0, le=MOST)
    """The generation of the spec that this was said of."""


class Restarts(Model):
    """How many attempts ended before their time, by cause. Each attempt counts once."""

    failures: int = Field(default=0, ge=0, le=MOST)
    """A worker ended with an error, or in a way that a rule charges. Only these count towards `recovery.maxRestarts`."""
    hangs: int | None = Field(default=None, ge=0, le=MOST)
    """Failures of these in which a rank had hung."""
    disruptions: int = Field(default=0, ge=0, le=MOST)
    """A worker was taken away: deleted, evicted, preempted, refused by its node, or lost with it; or it ended in a way that a
    rule ignores."""
    resizes: int = Field(default=0, ge=0, le=MOST)
    """The group got another size: `replicas` was changed, or an elastic group followed what the cluster had room for."""
    recent: list[Time] | None = Field(default=None, max_length=MOST_IN_A_WINDOW + 1)
    """With `recovery.windowSeconds`: when the failures happened that still count."""
    forgiven: int | None = Field(default=None, ge=0, le=MOST)
    """Failures that do not count towards `recovery.maxRestarts` any more, because the job has come further since."""
    furthest_step: int | None = Field(default=None, ge=0, le=MOST)
    """The furthest step at which an attempt ended before its time, where the program tells its progress."""
    at_same_step: int | None = Field(default=None, ge=0, le=MOST)
    """How many failures in a row were at the step of the last one, where the program tells its progress."""
    out_of_memory: int | None = Field(default=None, ge=0, le=MOST)
    """How many failures in a row, the last one included, ran out of memory without a step further, or of that which processes share (SIGBUS)."""


class LastFailure(Model):
    """The worker whose error ended an attempt: the first one, not those that failed because of it."""

    time: Time
    """When its main container ended, by the clock of its node."""
    attempt: int
    """The attempt that it ended."""
    pod: str
    """The pod's name."""
    pod_uid: str = Field(alias="podUID")
    """The pod's UID: a failure is counted once for it."""
    node: str | None = None
    """The node that it ran on."""
    rank: int | None = None
    """The rank that failed first, where the agent names it; else the worker's index, where it has one rank."""
    exit_code: int | None = None
    """The exit code of the main container; none where the pod was taken away and a rule charges that."""
    step: int | None = Field(default=None, ge=0, le=MOST)
    """The last step that the rank had done, where the program tells its progress."""
    reason: str
    """What the node says of it: Error, OOMKilled, …"""
    message: str = ""
    """The container's termination message or the end of its log, cut to 2,048 characters."""


class Avoidance(StrEnum):
    """How far a job keeps away from a node."""

    NO = "No"
    """It was the cause once."""
    IF_POSSIBLE = "IfPossible"
    """Workers go there only where there is no other place."""
    ALWAYS = "Always"
    """No worker goes there."""


class SuspectNode(Model):
    """A node that was the cause of an attempt's end."""

    name: str = Field(max_length=253)
    """The node's name."""
    strikes: int = Field(default=1, ge=1, le=MOST)
    """How many attempts ended because of it."""
    avoided: Avoidance = Avoidance.NO
    """Whether the workers of later attempts keep away from it: No, IfPossible or Always."""
    reason: str = Field(default="", max_length=MOST_WORDS)
    """What happened there last."""
    until: Time
    """When this is forgotten."""


class Retry(Model):
    """The delay between attempts that end soon after they start."""

    count: int = Field(default=0, ge=0, le=MOST)
    """Attempts in a row that ended before all workers had run for a minute."""
    not_before: Time | None = None
    """The next attempt does not start earlier than this."""
    rung: Rung | None = None
    """By what means the current attempt began: Processes, Containers, FailedPods or AllPods."""
    tries: int | None = Field(default=None, ge=0, le=MOST)
    """How many attempts in a row began by it without getting further."""


class Replacement(Model):
    """A worker, or several in a row, that got new pods while the others kept theirs."""

    worker: int = Field(ge=0, le=MOST)
    """Its index; of several that of the first."""
    through: int | None = Field(default=None, ge=0, le=MAX_REPLICAS)
    """The index of the last one, where there are several."""
    attempt: int = Field(ge=1, le=MOST_ATTEMPTS)
    """The attempt for which the pods were made."""

    @property
    def workers(self) -> range:
        """Their indexes."""
        return range(self.worker, max(self.worker, self.through or 0) + 1)


class Group(Model):
    """The pods that the current attempt is made of, where they are older than itself."""

    since: int = Field(ge=1, le=MOST_ATTEMPTS)
    """The attempt for which they were made."""
    workers: int | None = Field(default=None, ge=1, le=MAX_REPLICAS)
    """How many there are. Not set: as many as the annotation of the pods says."""
    replaced: list[Replacement] = Field(
        default=[],
        max_length=MOST_REPLACED,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["worker"]},
    )
    """Those that were made since."""
    container: int | None = Field(default=None, ge=0, le=MAX_REPLICAS)
    """The worker whose container starts anew in its pod before the attempt begins."""


class Joining(Model):
    """Workers that are to join the group. They get ready while it trains on."""

    size: int = Field(ge=1, le=MAX_REPLICAS)
    """How many workers the group has."""
    workers: int = Field(ge=1, le=MAX_REPLICAS)
    """How many it is to have; as many as it has where nobody is to join any more, and those that were to have yet to go."""
    attempt: int = Field(ge=1, le=MOST_ATTEMPTS)
    """The attempt in the names of their pods: the one that ran when they were asked for."""
    since: Time | None = None
    """Since when some of them are ready, and wait for the others."""
    of: int | None = Field(default=None, ge=1, le=MAX_REPLICAS)
    """Where there was no room for all that were wished for: how many the group was to have with those."""


class Rendezvous(Model):
    """Where the workers of an attempt meet that did not all begin with it."""

    attempt: int = Field(ge=1, le=MOST_ATTEMPTS)
    """The attempt. Until it is the current one, all workers wait for each other."""
    address: str = Field(max_length=256)
    """Of worker 0."""


class GracefulStop(Model):
    """An end of the current attempt on which all ranks agree, so that each can write its part of a checkpoint."""

    attempt: int = Field(ge=1, le=MOST_ATTEMPTS)
    """The attempt that ends so."""
    time: Time
    """When it was asked for."""
    why: str = Field(default="", max_length=MOST_WORDS)
    """What it was asked for, in words."""
    step: int | None = Field(default=None, ge=0, le=MOST)
    """The step after which they end. Not set while it is being agreed upon."""


class WorkerStatus(Model):
    """A worker that is not well."""

    name: str
    """The pod's name."""
    node: str | None = None
    """The node that it is bound to."""
    state: str
    """Pending, Starting, Failed or Disrupted."""
    reason: str | None = None
    """What the scheduler or the node says, in one word."""
    message: str | None = None
    """The same, for people."""


class TrainingJobStatus(Model):
    """What the operator sees of the job, and what it has decided."""

    observed_generation: int = Field(default=0, ge=0, le=MOST)
    """The generation of the spec that this status is about."""
    phase: Phase = Phase.PENDING
    """One word for the state of the job. Programs read the conditions instead."""
    conditions: list[Condition] = Field(
        default=[],
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    )
    """What is true of the job: Scheduled, Running, Restarting, Suspended, Stalled, Complete, Failed. Resizing is said where workers
    are to join, and what they wait for; Supervised where the agent cannot be in the workers, and why; ScalingLimited where the group
    has not the size that `replicas` says, since that is not allowed; Straggling where ranks are slower than the others."""
    attempt: int = Field(default=1, ge=1, le=MOST_ATTEMPTS)
    """The current incarnation of the whole group. It begins with new pods, or in those of an earlier one (`group`)."""
    group: Group | None = None
    """The pods that it is made of, where some began with an earlier one: their processes were started anew in place."""
    joining: Joining | None = None
    """Workers that are to join, while the others train on: `replicas` was raised, or the group lacks workers for want of room."""
    growth_pause_time: Time | None = None
    """Since when an elastic group does not grow (`elastic.growAfterSeconds`): it got another size then, or lost workers that were to join it."""
    previous_workers: int | None = Field(default=None, ge=1, le=MAX_REPLICAS)
    """How many workers the attempt before had."""
    rendezvous: Rendezvous | None = None
    """Where the workers of such an attempt meet, once all of them are ready."""
    graceful_stop: GracefulStop | None = None
    """The end that its ranks come to together: because a worker is leaving, the job is suspended, or gets another size."""
    launched_attempt: int = Field(default=0, ge=0, le=MOST_ATTEMPTS)
    """The last attempt of which every pod has been created: since then, a missing pod is a disruption."""
    attempt_start_time: Time | None = None
    """When the current attempt was decided."""
    replicas: int = Field(default=0, ge=0, le=MOST)
    """Worker pods that exist, those of earlier attempts that are on their way out included."""
    ready_replicas: int = Field(default=0, ge=0, le=MOST)
    """Worker pods of the current attempt that are ready, or have succeeded."""
    ready: str = "0/0"
    """Ready and wished workers, for the printed table."""
    selector: str = ""
    """The label selector of the job's pods, for the scale subresource."""
    start_time: Time | None = None
    """When the job was first active."""
    running_time: Time | None = None
    """When all workers of the current attempt ran for the first time."""
    completion_time: Time | None = None
    """When the job finished."""
    active_since: Time | None = None
    """Since when the job has been active without a suspension between."""
    active_seconds: int = Field(default=0, ge=0, le=MOST)
    """Seconds that it was active before that."""
    restarts: Restarts = Restarts()
    """Attempts that ended before their time."""
    restart_count: int = Field(default=0, ge=0, le=MOST)
    """How often the group was started anew for any of them, for the printed table."""
    retry: Retry = Retry()
    """The delay between attempts."""
    last_failure: LastFailure | None = None
    """The last failure that was counted."""
    progress: Progress | None = None
    """How far the training is. Nothing where its program does not tell, or no agent is in its workers."""
    stragglers: list[Straggler] = Field(
        default=[],
        max_length=MOST_STRAGGLERS,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["rank"]},
    )
    """Ranks of the current attempt that are slower than the others, 16 at most."""
    goodput: Goodput | None = None
    """What the active time went into. Nothing where the program does not tell its steps (`trainyard_agent.progress`), or no agent is in
    its workers; no ratio before it is known how long a step takes."""
    suspect_nodes: list[SuspectNode] = Field(
        default=[],
        max_length=MOST_SUSPECTS,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    )
    """Nodes that were the cause of attempts' ends in the last day, and which of them the job avoids."""
    workers: list[WorkerStatus] = Field(
        default=[],
        max_length=16,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    )
    """Workers that are not well, 16 at most. Those that are fine are not listed."""

    @field_validator("phase", mode="before")
    @classmethod
    def _known_phase(cls, value: str) -> str:
        """A newer operator may have stored a word that this one does not know. No decision rests on it."""
        return value if value in set(Phase) else Phase.PENDING

    def condition(self, kind: ConditionType) -> Condition | None:
        """The condition of this type, if it was ever said."""
        return next((c for c in self.conditions if c.type == kind), None)

    def holds(self, kind: ConditionType) -> bool:
        """Whether the condition is True."""
        return (c := self.condition(kind)) is not None and c.status == "True"

    def includes(self, worker: int) -> bool:
        """Whether the current attempt has such a worker, as far as it is known from here."""
        return self.size is None or worker < self.size

    @property
    def size(self) -> int | None:
        """How many workers the current attempt has, where that is stored; else its pods tell."""
        if self.group and self.group.workers:
            return self.group.workers
        return self.joining.size if self.joining else None

    def has(self, worker: int, attempt: int) -> bool:
        """Whether the pod of this worker that was made for `attempt` is one of those that the current attempt is made of."""
        return self.includes(worker) and attempt == self.made_in(worker)

    def awaits(self, worker: int, attempt: int) -> bool:
        """Whether that pod is none of them, and is to join the next attempt of another size."""
        told = self.joining
        return told is not None and told.size <= worker < told.workers and attempt == told.attempt

    def made_in(self, worker: int) -> int:
        """The attempt for which the pod of this worker was made, or is to be."""
        if self.group is None:
            return self.attempt
        own = next((each.attempt for each in self.group.replaced if worker in each.workers), self.group.since)
        # Whatever somebody has written into the status by hand.
        return min(own, self.attempt)

    @property
    def meeting(self) -> bool:
        """Whether the workers of the current attempt still wait for each other."""
        opened = self.rendezvous is not None and self.rendezvous.attempt == self.attempt
        return self.group is not None and not opened

    @property
    def stopping(self) -> GracefulStop | None:
        """The end to which the current attempt comes."""
        stop = self.graceful_stop
        return stop if stop is not None and stop.attempt == self.attempt else None

    @property
    def finished(self) -> bool:
        """Whether the job is over. Final: nothing is created for it any more."""
        return self.holds(ConditionType.COMPLETE) or self.holds(ConditionType.FAILED)
