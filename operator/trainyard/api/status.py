"""`status`: it holds, together with the pods, all data for decisions. None is in memory alone."""

from datetime import datetime
from enum import StrEnum
from typing import Any, TypedDict, Unpack

from pydantic import Field, field_validator
from typing_extensions import override

from trainyard.api.base import MAX_ATTEMPT, MAX_JSON_INTEGER, Model, Time
from trainyard.api.internal_status import (
    MAX_REASON_LENGTH,
    Admission,
    Backoff,
    CoordinatedStop,
    CountedProcesses,
    Group,
    InternalStatus,
    Joining,
    PodGroup,
    Recreated,
    Releases,
    Rendezvous,
    RestartBudget,
    StackDump,
    Succeeded,
    WorkerOrder,
)
from trainyard.api.job_conditions import (
    MAX_SUMMARY_LENGTH,
    Condition as Condition,  # noqa: PLC0414 - a part of the status, imported from here by all
    ConditionType as ConditionType,  # noqa: PLC0414 - the same
    summary,
)
from trainyard.api.node_avoidance import (
    MAX_SUSPECT_NODES as MAX_SUSPECT_NODES,  # noqa: PLC0414 - the same
    Avoidance as Avoidance,  # noqa: PLC0414 - the same
    SuspectNode as SuspectNode,  # noqa: PLC0414 - the same
)
from trainyard.api.progress import MAX_STRAGGLERS, Goodput, Progress, Straggler
from trainyard.api.roles import MAX_ROLES, is_worker
from trainyard.api.worker_status import RoleStatus, WorkerStatus


class Phase(StrEnum):
    """The state of the job in one word, derived from the conditions, for people."""

    QUEUED = "Queued"
    PENDING = "Pending"
    RUNNING = "Running"
    RESTARTING = "Restarting"
    SUSPENDED = "Suspended"
    COMPLETE = "Complete"
    FAILED = "Failed"


class Restarts(Model):
    """Attempts that ended early, by cause. Each attempt counts once."""

    failures: int = Field(default=0, ge=0, le=MAX_JSON_INTEGER)
    """A worker exited with an error, or a rule counts its disruption. Only these count towards `recovery.maxRestarts`."""
    hangs: int | None = Field(default=None, ge=0, le=MAX_JSON_INTEGER)
    """The failures in which a rank was hung."""
    disruptions: int = Field(default=0, ge=0, le=MAX_JSON_INTEGER)
    """A worker was deleted, evicted, preempted, rejected by its node or lost with it. Or a rule ignores its exit."""
    resizes: int = Field(default=0, ge=0, le=MAX_JSON_INTEGER)
    """The group was resized: `replicas` was changed, or an elastic group followed the capacity of the cluster."""


class LastFailure(Model):
    """The failure that ended an attempt: the root cause, not the failures that it caused."""

    time: Time
    """When the main container terminated, by the clock of its node."""
    attempt: int
    """The attempt that failed."""
    pod: str
    """The pod's name."""
    pod_uid: str = Field(alias="podUID")
    """The pod's UID. One failure is counted for each pod."""
    node: str | None = None
    """The node of the pod."""
    rank: int | None = None
    """The rank that failed first, if the agent reports it. Otherwise the worker's index, if it has one rank."""
    exit_code: int | None = None
    """The exit code of the main container. Not set for a disruption that a rule counts."""
    step: int | None = Field(default=None, ge=0, le=MAX_JSON_INTEGER)
    """The last step that the rank finished, if the program reports progress."""
    reason: str
    """The reason that the node reports: Error, OOMKilled, …"""
    summary: str | None = None
    """The failure in two words, for the printed table: the exit code, or the reason if it is more than Error."""
    message: str = ""
    """The container's termination message or the end of its log, at most 2,048 characters."""


class TrainingJobStatus(Model):
    """The observed state of the job, and the decisions of the operator."""

    observed_generation: int = Field(default=0, ge=0, le=MAX_JSON_INTEGER)
    """The generation of the spec that this status describes."""
    phase: Phase = Phase.PENDING
    """The state of the job in one word, for people. Programs read the conditions."""
    reason: str | None = Field(default=None, max_length=MAX_REASON_LENGTH)
    """Why the job waits, restarts, has fewer workers than requested or has finished, in one word. While all workers run: the
    reason of a warning, such as RanksIdle. Not set if there is none."""
    message: str | None = Field(default=None, max_length=MAX_SUMMARY_LENGTH)
    """The reason in one line, shortened for the printed table. The condition with that reason has the whole message."""
    conditions: list[Condition] = Field(
        default=[],
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    )
    """Scheduled, Running, Restarting, Queued, Suspended, Stalled, Complete and Failed describe the job. Resizing: workers are joining, and what
    they wait for. ScalingLimited: `replicas` is a size that is not allowed. AgentInjected: whether the agent runs in the workers, and
    why not. Straggling: some ranks are slower than the others. HangSuspected: no rank does anything. HangDetectionLimited: the program
    does not report progress. FailureHidden: a rank failed, but its command exited with code 0. GroupSplit: the ranks formed several
    process groups in place of one. RdmaUnused: NCCL uses TCP although the workers request devices for RDMA. AcceleratorsUncertain: `processesPerReplica: auto` may mean another
    number than you need."""
    attempt: int = Field(default=1, ge=1, le=MAX_ATTEMPT)
    """The current incarnation of the group. It starts with new pods, or restarts processes in existing pods."""
    replicas: int = Field(default=0, ge=0, le=MAX_JSON_INTEGER)
    """Worker pods that exist, terminating pods of earlier attempts included."""
    ready_replicas: int = Field(default=0, ge=0, le=MAX_JSON_INTEGER)
    """Worker pods of the current attempt that are ready, or have succeeded."""
    roles: list[RoleStatus] = Field(
        default=[],
        max_length=MAX_ROLES + 1,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    )
    """The members of each role, the workers included. Not set in a group of workers alone."""
    ready: str = "0/0"
    """Ready/desired workers, and members of other roles, for the printed table. A worker that has exited with code 0 counts as ready, although `kubectl get pods`
    prints 0/1 for its pod."""
    selector: str = ""
    """The label selector of the job's pods, for the scale subresource."""
    start_time: Time | None = None
    """The time at which the job was first active."""
    running_time: Time | None = None
    """The time at which all workers of the current attempt ran for the first time."""
    completion_time: Time | None = None
    """The time at which the job finished."""
    restarts: Restarts = Restarts()
    """Attempts that ended early, by cause."""
    restart_count: int = Field(default=0, ge=0, le=MAX_JSON_INTEGER)
    """Restarts because of failures and disruptions, for the printed table. Resizes do not count."""
    last_failure: LastFailure | None = None
    """The last failure that was counted."""
    progress: Progress | None = None
    """The progress of the training. Not set if the program does not report it, or no agent runs in the workers."""
    stragglers: list[Straggler] = Field(
        default=[],
        max_length=MAX_STRAGGLERS,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["rank"]},
    )
    """Ranks of the current attempt that are slower than the others, 16 at most."""
    goodput: Goodput | None = None
    """How the active time was spent. Not set if the program does not report its steps (`trainyard_agent.progress`), or no agent runs in
    the workers. It has no ratio until the time of a step is known."""
    suspect_nodes: list[SuspectNode] = Field(
        default=[],
        max_length=MAX_SUSPECT_NODES,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    )
    """Nodes that ended attempts of the job in the last day, and how strictly the job avoids them."""
    workers: list[WorkerStatus] = Field(
        default=[],
        max_length=16,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    )
    """Workers that are not healthy, 16 at most."""
    internal: InternalStatus = InternalStatus()
    """For the operator only. It may change with any release: do not read it."""

    @field_validator("phase", mode="before")
    @classmethod
    def _known_phase(cls, value: str) -> str:
        """A newer operator may have stored a phase that this one does not know. No decision depends on the phase."""
        return value if value in set(Phase) else Phase.PENDING

    @override
    def dump(self) -> dict[str, Any]:
        """Return the JSON form, without unset fields and empty lists: `kubectl describe` would print each of them."""
        return {name: value for name, value in super().dump().items() if value != []}

    @override
    def evolve(  # type: ignore[override] # narrower on purpose: mypy checks each field
        self, **changes: Unpack["StatusChanges"]
    ) -> "TrainingJobStatus":
        """Return the status with these fields changed, those of `internal` included. Each value is validated.

        `reason` and `message` follow from the conditions, so they change with these.

        Raises:
            TypeError: a field is unknown.
            pydantic.ValidationError: a value has the wrong type or is out of bounds.
        """
        if "conditions" in changes:
            changes["reason"], changes["message"] = summary(changes["conditions"])
        own: dict[str, Any] = {
            name: value for name, value in changes.items() if name not in InternalStatus.model_fields
        }
        inner = {name: value for name, value in changes.items() if name in InternalStatus.model_fields}
        if inner:
            own["internal"] = self.internal.evolve(**inner)
        return super().evolve(**own)

    def condition(self, kind: ConditionType) -> Condition | None:
        """Return the condition of this type, if there is one."""
        return next((c for c in self.conditions if c.type == kind), None)

    def holds(self, kind: ConditionType) -> bool:
        """Return whether the condition is True."""
        return (c := self.condition(kind)) is not None and c.status == "True"

    def includes(self, worker: int) -> bool:
        """Return whether the current attempt has such a worker, as far as the status knows its size."""
        return not is_worker(worker) or self.size is None or worker < self.size

    @property
    def size(self) -> int | None:
        """The number of workers of the current attempt. None: only its pods know."""
        group, joining = self.internal.group, self.internal.joining
        if group and group.size:
            return group.size
        return joining.current_size if joining else None

    @property
    def pod_group(self) -> PodGroup | None:
        """The PodGroup of the current attempt's pods; None where they have none, or where it is still that of earlier pods."""
        stored = self.internal.pod_group
        kept = stored is not None and (self.internal.group is not None or stored.created_in_attempt == self.attempt)
        return stored if kept else None

    @property
    def group_attempt(self) -> int:
        """The attempt for which the group was created, with all of its pods."""
        return self.internal.group.created_in_attempt if self.internal.group else self.attempt

    def has(self, worker: int, attempt: int, recreated: int = 0) -> bool:
        """Return whether the worker's pod that was created for `attempt` belongs to the current attempt.

        `recreated`: how often the pod was created again in that attempt.
        """
        is_newest = attempt == self.created_in_attempt(worker) and recreated == self.recreated(worker)
        return self.includes(worker) and is_newest

    def recreated(self, worker: int) -> int:
        """Return how often the worker's pod was created again while the others went on."""
        if not self.internal.recreated:
            return 0
        attempt = self.created_in_attempt(worker)
        found = (e.count for e in self.internal.recreated if e.member == worker and e.attempt == attempt)
        return next(found, 0)

    def is_joining(self, worker: int, attempt: int) -> bool:
        """Return whether the worker's pod that was created for `attempt` will join the group."""
        joining = self.internal.joining
        return (
            joining is not None and joining.current_size <= worker < joining.target_size and attempt == joining.attempt
        )

    def created_in_attempt(self, worker: int) -> int:
        """Return the attempt for which the current pod of this worker was created, or will be."""
        group = self.internal.group
        if group is None:
            return self.attempt
        replaced = (each.attempt for each in group.replacements if worker in each.workers)
        # The status may have been edited by hand.
        return min(next(replaced, group.created_in_attempt), self.attempt)

    def group_rank(self, worker: int) -> int:
        """Return the place of a worker in the order of ranks: it has the ranks from this number times the processes of a worker."""
        order = self.internal.worker_order
        return worker if order is None else order.place_of.get(worker, worker)

    @property
    def has_placed_ranks(self) -> bool:
        """Whether the order of ranks is another one than that of the workers' indexes."""
        order = self.internal.worker_order
        return order is not None and bool(order.workers)

    @property
    def awaiting_rendezvous(self) -> bool:
        """Whether the workers of the current attempt still wait for each other."""
        rendezvous = self.internal.rendezvous
        opened = rendezvous is not None and rendezvous.attempt == self.attempt
        return self.internal.group is not None and not opened

    @property
    def succeeded_workers(self) -> frozenset[int]:
        """The workers that have succeeded in the current attempt, as stored."""
        stored = self.internal.succeeded
        if stored is None or stored.attempt != self.attempt:
            return frozenset()
        return frozenset(index for run in stored.workers for index in range(run.first, run.last + 1))

    @property
    def starting_since(self) -> datetime | None:
        """Since when the current attempt has been starting; None where all its workers have run already."""
        begun = self.internal.attempt_start_time
        if self.running_time or not begun:
            return None
        return max(begun, self.internal.backoff.not_before or begun)

    @property
    def stacks_requested(self) -> str:
        """The request for the stacks of the current attempt's ranks; empty where there is none."""
        dump = self.internal.stack_dump
        return dump.request if dump is not None and dump.attempt == self.attempt else ""

    @property
    def stopping(self) -> CoordinatedStop | None:
        """The coordinated stop of the current attempt, if one was requested."""
        stop = self.internal.coordinated_stop
        return stop if stop is not None and stop.attempt == self.attempt else None

    @property
    def suspended(self) -> bool:
        """Whether the job is suspended: it has no pods until it is resumed."""
        return self.holds(ConditionType.SUSPENDED)

    @property
    def queued(self) -> bool:
        """Whether the job is held by its queue: it has no pods until it is admitted."""
        return self.holds(ConditionType.QUEUED)

    @property
    def at_rest(self) -> bool:
        """Whether the job is to have no pods for now: the user has suspended it, or its queue holds it."""
        return self.suspended or self.queued

    @property
    def finished(self) -> bool:
        """Whether the job has finished. This is final: the operator creates nothing for it any more."""
        return self.holds(ConditionType.COMPLETE) or self.holds(ConditionType.FAILED)


class StatusChanges(TypedDict, total=False):
    """Changes of a TrainingJobStatus: its fields and those of `internal`, which have other names. A test holds both together."""

    observed_generation: int
    phase: Phase
    reason: str | None
    message: str | None
    conditions: list[Condition]
    attempt: int
    replicas: int
    ready_replicas: int
    roles: list[RoleStatus]
    ready: str
    selector: str
    start_time: datetime | None
    running_time: datetime | None
    completion_time: datetime | None
    restarts: Restarts
    restart_count: int
    last_failure: LastFailure | None
    progress: Progress | None
    stragglers: list[Straggler]
    goodput: Goodput | None
    suspect_nodes: list[SuspectNode]
    workers: list[WorkerStatus]

    group: Group | None
    pod_group: PodGroup | None
    recreated: list[Recreated]
    joining: Joining | None
    scale_up_paused_since: datetime | None
    previous_size: int | None
    rendezvous: Rendezvous | None
    worker_order: WorkerOrder | None
    coordinated_stop: CoordinatedStop | None
    stack_dump: StackDump | None
    launched_attempt: int
    succeeded: Succeeded | None
    attempt_start_time: datetime | None
    admission: Admission | None
    active_since: datetime | None
    active_seconds: int
    backoff: Backoff
    releases: Releases | None
    counted_processes: CountedProcesses | None
    restart_budget: RestartBudget
