"""`status.internal`: state that only the operator needs. Users read the other fields of the status."""

from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any

from pydantic import Field, WithJsonSchema, field_validator

from trainyard.api.base import MAX_ATTEMPT, MAX_JSON_INTEGER, Model, Time
from trainyard.api.constants import MAX_REPLICAS, MAX_STACK_REQUEST
from trainyard.api.recovery import MAX_RESTARTS_IN_WINDOW, RestartScope
from trainyard.api.roles import MAX_MEMBER_INDEX, MAX_ROLE_REPLICAS, MAX_ROLES, OPAQUE
from trainyard.api.scheduling import GangScheduler
from trainyard.api.spec import MAX_PROCESSES_PER_REPLICA

MAX_REASON_LENGTH = 1024
"""Characters of a reason."""
MAX_RESOURCES_LENGTH = 1024
"""Characters of the extended resources of a worker."""
MAX_REPLACEMENTS = 64
"""Runs of workers that got new pods since the group was created. With more, all workers get new pods."""
MAX_RECREATED = 256
"""Members whose pod was created again in the running attempt. With more, the oldest pods count as lost again."""
MAX_RECREATIONS = 999_999_999
"""The largest number in the name of a pod that was created again."""
MAX_ADMITTED_ENTRIES = 64
"""Labels, annotations, node labels or tolerations that an admission gives to the pods of a role."""
MAX_REPEAT_PODS = 8
"""Pods of a repeated failure that are stored, and nodes."""


class RepeatedFailure(Model):
    """Failures in a row by the same exception at the same place, without a step between them."""

    exception: str = Field(max_length=MAX_REASON_LENGTH)
    """The type of the exception."""
    location: str = Field(max_length=MAX_REASON_LENGTH)
    """The frames in which it was raised."""
    failures: int = Field(ge=1, le=MAX_JSON_INTEGER)
    """The failures, the last one included."""
    pods: list[str] = Field(default=[], max_length=MAX_REPEAT_PODS, json_schema_extra={"x-kubernetes-list-type": "set"})
    """The UIDs of the pods in which it was raised."""
    nodes: list[str] = Field(
        default=[], max_length=MAX_REPEAT_PODS, json_schema_extra={"x-kubernetes-list-type": "set"}
    )
    """The nodes of these pods."""


class RestartBudget(Model):
    """Which failures still count, and whether the job makes progress between them."""

    recent: list[Time] | None = Field(default=None, max_length=MAX_RESTARTS_IN_WINDOW + 1)
    """With `recovery.windowSeconds`: the times of the failures that still count."""
    forgiven: int | None = Field(default=None, ge=0, le=MAX_JSON_INTEGER)
    """Failures that no longer count towards `recovery.maxRestarts`, because the job has made progress since."""
    furthest_step: int | None = Field(default=None, ge=0, le=MAX_JSON_INTEGER)
    """The furthest step at which an attempt ended early, if the program reports its steps."""
    at_same_step: int | None = Field(default=None, ge=0, le=MAX_JSON_INTEGER)
    """Failures in a row at the step of the last failure, if the program reports its steps."""
    out_of_memory: int | None = Field(default=None, ge=0, le=MAX_JSON_INTEGER)
    """Failures in a row, the last one included, that ran out of memory without progress (shared memory included: SIGBUS)."""
    repeated: RepeatedFailure | None = None
    """The exception that ended the last attempts before their first step."""


class Backoff(Model):
    """The delay between attempts that end soon after they start, and the restart scope."""

    count: int = Field(default=0, ge=0, le=MAX_JSON_INTEGER)
    """Attempts in a row that ended before all workers had run for a minute."""
    not_before: Time | None = None
    """The earliest start of the next attempt."""
    scope: RestartScope | None = None
    """The restart scope with which the current attempt started: Process, Container, Pod or Group."""
    scope_attempts: int | None = Field(default=None, ge=0, le=MAX_JSON_INTEGER)
    """Attempts in a row that started with this scope without progress."""


class Releases(Model):
    """The attempts in a row that gave their nodes back, since only a part of the group had some."""

    count: int = Field(ge=1, le=MAX_JSON_INTEGER)
    """The attempts."""
    since: Time
    """When the first of them started: `lifecycle.startupDeadlineSeconds` counts from here."""


class Replacement(Model):
    """A worker, or a run of workers, that got new pods while the others kept theirs."""

    worker: int = Field(ge=0, le=MAX_JSON_INTEGER)
    """The index of the (first) worker."""
    last_worker: int | None = Field(default=None, ge=0, le=MAX_MEMBER_INDEX)
    """The index of the last worker of a run."""
    attempt: int = Field(ge=1, le=MAX_ATTEMPT)
    """The attempt for which the pods were created."""

    @property
    def workers(self) -> range:
        """The indexes of the workers."""
        return range(self.worker, max(self.worker, self.last_worker or 0) + 1)


class Group(Model):
    """The pods of the current attempt, if some of them are older than the attempt."""

    created_in_attempt: int = Field(ge=1, le=MAX_ATTEMPT)
    """The attempt for which the pods were created."""
    size: int | None = Field(default=None, ge=1, le=MAX_REPLICAS)
    """The number of workers. Not set: an annotation of the pods holds it."""
    replacements: list[Replacement] = Field(
        default=[],
        max_length=MAX_REPLACEMENTS,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["worker"]},
    )
    """Workers whose pods were created for a later attempt."""
    restarting_container: int | None = Field(default=None, ge=0, le=MAX_MEMBER_INDEX)
    """The worker whose container restarts in its pod before the attempt starts."""


class PodGroup(Model):
    """The PodGroup of the group's pods, by which a scheduler places them all or none. It is stored before it is created."""

    scheduler: GangScheduler
    """The scheduler that reads it."""
    created_in_attempt: int = Field(ge=1, le=MAX_ATTEMPT)
    """The attempt for which it was created, with all pods of the group. Replaced pods keep it."""
    min_member: int = Field(ge=1, le=MAX_REPLICAS + MAX_ROLES * MAX_ROLE_REPLICAS)
    """The members that are placed together."""
    queue: str | None = Field(default=None, max_length=253)
    """The queue of Volcano. Not set: Volcano's default one, or a scheduler without queues."""


class Recreated(Model):
    """A member that goes on alone, whose pod was created again in the running attempt."""

    member: int = Field(ge=0, le=MAX_MEMBER_INDEX)
    """The index of the member."""
    attempt: int = Field(ge=1, le=MAX_ATTEMPT)
    """The attempt for which its first pod was created."""
    count: int = Field(ge=1, le=MAX_RECREATIONS)
    """How often it got a new pod since then."""
    launched: bool = False
    """Whether the last of these pods has existed: from then on, a missing pod is lost again."""


class Joining(Model):
    """Workers that will join the group. Their pods start while the group trains."""

    current_size: int = Field(ge=1, le=MAX_REPLICAS)
    """The current number of workers of the group."""
    target_size: int = Field(ge=1, le=MAX_REPLICAS)
    """The number of workers after the join. Equal to `currentSize` while the pods of a cancelled join are deleted."""
    attempt: int = Field(ge=1, le=MAX_ATTEMPT)
    """The attempt in the names of the joining pods: the one that ran when they were requested."""
    ready_since: Time | None = None
    """The time since which some joining workers are ready and wait for the others."""
    requested_size: int | None = Field(default=None, ge=1, le=MAX_REPLICAS)
    """The requested number of workers, if the cluster lacks the capacity for all of them."""


class Rendezvous(Model):
    """The address at which the workers of an attempt meet, if some of their pods are older than the attempt."""

    attempt: int = Field(ge=1, le=MAX_ATTEMPT)
    """The attempt. While it is not the current one, all workers wait for each other."""
    address: str = Field(max_length=256)
    """The address of worker 0."""


class WorkerOrder(Model):
    """The order of the workers by rank. It is found once for each group, and stays while the group keeps pods."""

    workers: list[Annotated[int, Field(ge=0, le=MAX_REPLICAS - 1)]] = Field(
        default=[], max_length=MAX_REPLICAS, json_schema_extra={"x-kubernetes-list-type": "atomic"}
    )
    """The indexes of all workers, that of the first ranks first. Empty: the order is that of the indexes."""

    @cached_property
    def place_of(self) -> Mapping[int, int]:
        """The place of each worker in the order. Each agent of a group asks for its own, several times in a restart."""
        return {worker: place for place, worker in enumerate(self.workers)}

    @field_validator("workers")
    @classmethod
    def _permutation(cls, value: list[int]) -> list[int]:
        """Return the order by index where the status was edited by hand: each rank must be on one worker, and rank 0 on worker 0."""
        is_order = not value or (value[0] == 0 and sorted(value) == list(range(len(value))))
        return value if is_order else []


class CoordinatedStop(Model):
    """A stop of the current attempt after one step that all ranks agree on, so that each writes its part of a checkpoint."""

    attempt: int = Field(ge=1, le=MAX_ATTEMPT)
    """The attempt that stops."""
    time: Time
    """The time of the request."""
    reason: str = Field(default="", max_length=MAX_REASON_LENGTH)
    """Why the stop was requested, for people."""
    step: int | None = Field(default=None, ge=0, le=MAX_JSON_INTEGER)
    """The step after which all ranks stop. Not set until the ranks have agreed on it."""


class WorkerRange(Model):
    """A run of workers with consecutive indexes."""

    first: int = Field(ge=0, le=MAX_MEMBER_INDEX)
    """The index of the first worker."""
    last: int = Field(ge=0, le=MAX_MEMBER_INDEX)
    """The index of the last worker."""


class Succeeded(Model):
    """The workers that have succeeded in an attempt, whether their pods still exist or not."""

    attempt: int = Field(ge=1, le=MAX_ATTEMPT)
    """The attempt. Its success does not count for a later one."""
    workers: list[WorkerRange] = Field(
        default=[], max_length=MAX_REPLICAS // 2, json_schema_extra={"x-kubernetes-list-type": "atomic"}
    )
    """The workers."""


class CountedProcesses(Model):
    """The processes of a worker as `processesPerReplica: auto` was counted. A changed table of accelerators does not change a group."""

    resources: str = Field(max_length=MAX_RESOURCES_LENGTH)
    """The extended resources that they were counted from."""
    processes: int = Field(ge=1, le=MAX_PROCESSES_PER_REPLICA)
    """The processes of each worker."""


class StackDump(Model):
    """The last request for the stacks of all ranks (the annotation `trainyard.dev/dump-stacks`)."""

    request: str = Field(max_length=MAX_STACK_REQUEST)
    """The value of the annotation."""
    attempt: int = Field(ge=1, le=MAX_ATTEMPT)
    """The attempt whose ranks write their stacks. Those of later attempts do not."""


class AdmittedPods(Model):
    """What the queue has decided about the pods of one role. Each of them gets this, a replacement too."""

    role: str = Field(max_length=63)
    """The role."""
    count: int = Field(ge=0, le=MAX_REPLICAS)
    """The pods for which there is quota. Fewer than requested: a partial admission."""
    labels: dict[str, str] = Field(default={}, max_length=MAX_ADMITTED_ENTRIES)
    """Labels."""
    annotations: dict[str, str] = Field(default={}, max_length=MAX_ADMITTED_ENTRIES)
    """Annotations."""
    node_selector: dict[str, str] = Field(default={}, max_length=MAX_ADMITTED_ENTRIES)
    """The labels of the nodes of the admitted flavors."""
    tolerations: list[Annotated[dict[str, Any], WithJsonSchema(OPAQUE)]] = Field(
        default=[], max_length=MAX_ADMITTED_ENTRIES, json_schema_extra={"x-kubernetes-list-type": "atomic"}
    )
    """The tolerations of the admitted flavors."""


class Admission(Model):
    """The admission of the job by its queue. It is stored before a pod is created from it."""

    workload: str = Field(max_length=253)
    """The name of the Workload."""
    uid: str = Field(max_length=64)
    """Its UID. An admission of another Workload is none of this job."""
    cluster_queue: str = Field(default="", max_length=253)
    """The ClusterQueue that has the quota."""
    pods: list[AdmittedPods] = Field(
        default=[],
        max_length=MAX_ROLES + 1,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["role"]},
    )
    """The pods, by role."""

    def of_role(self, role: str) -> AdmittedPods | None:
        """Return what was decided about the pods of this role."""
        return next((pods for pods in self.pods if pods.role == role), None)


class InternalStatus(Model):
    """State that the operator keeps for itself. It may change with any release: do not read it."""

    group: Group | None = None
    """The pods of the current attempt, if some are older than it: their processes restarted in place."""
    pod_group: PodGroup | None = None
    """The PodGroup of the pods, if a scheduler places them all or none."""
    recreated: list[Recreated] = Field(
        default=[],
        max_length=MAX_RECREATED,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["member"]},
    )
    """Members whose pods were created again while the others went on."""
    joining: Joining | None = None
    """Workers that start while the group trains: `replicas` was raised, or capacity for missing workers has come back."""
    scale_up_paused_since: Time | None = None
    """The time since which an elastic group does not grow (`elastic.growAfterSeconds`): its size changed, or joining workers were lost."""
    previous_size: int | None = Field(default=None, ge=1, le=MAX_REPLICAS)
    """The number of workers of the previous attempt."""
    rendezvous: Rendezvous | None = None
    """The address at which the workers of such an attempt meet, once all of them are ready."""
    worker_order: WorkerOrder | None = None
    """The order of the workers by rank, if it follows their placement."""
    coordinated_stop: CoordinatedStop | None = None
    """The stop that all ranks make after the same step: a worker leaves, the job is suspended, or its size changes."""
    stack_dump: StackDump | None = None
    """The last request for the stacks of all ranks."""
    launched_attempt: int = Field(default=0, ge=0, le=MAX_ATTEMPT)
    """The last attempt whose pods were all created. From then on a missing pod is a disruption."""
    succeeded: Succeeded | None = None
    """The workers of the current attempt that have succeeded. Their pods may be deleted without a new attempt."""
    attempt_start_time: Time | None = None
    """The time of the decision to start the current attempt."""
    admission: Admission | None = None
    """The admission by the queue. Not set: the job is in no queue, or waits in it."""
    active_since: Time | None = None
    """The time since which the job has been active without a suspension."""
    active_seconds: int = Field(default=0, ge=0, le=MAX_JSON_INTEGER)
    """Seconds that the job was active before that."""
    backoff: Backoff = Backoff()
    """The delay between attempts, and the restart scope."""
    releases: Releases | None = None
    """The last attempts, if they gave their nodes back (`scheduling.partialTimeoutSeconds`)."""
    counted_processes: CountedProcesses | None = None
    """What `processesPerReplica: auto` means for the group, if its workers request extended resources."""
    restart_budget: RestartBudget = RestartBudget()
    """Which failures still count towards `recovery.maxRestarts`."""
