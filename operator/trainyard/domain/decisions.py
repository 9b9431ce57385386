"""What a plan decides, as values: on the attempt and the job, on pods, on conditions. Pure data.

A check returns a Decision, PodChanges or an Outcome. `status.transitions` and `status.report` make the Outcome of the
first two. The executor must match every Action.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from math import ceil
from typing import Literal

from trainyard.api.internal_status import Admission, Group, PodGroup, Rendezvous
from trainyard.api.reasons import Reason
from trainyard.api.scheduling import GangScheduler
from trainyard.api.status import ConditionType, StatusChanges, TrainingJobStatus
from trainyard.domain.workload_changes import PodSet, WorkloadChange

ALL_WORKERS = "restarting all workers"


@dataclass(frozen=True, slots=True)
class SetTrue:
    """Set a condition to True. `reason` is a Reason, or a stored one of a newer operator."""

    kind: ConditionType
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class SetFalse:
    """Set a condition to False."""

    kind: ConditionType
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Clear:
    """Set a condition to False if it is True now."""

    kind: ConditionType
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Remove:
    """Remove a condition: it may not hold any more, and nothing is known of it yet."""

    kind: ConditionType


ConditionUpdate = SetTrue | SetFalse | Clear | Remove


@dataclass(frozen=True, slots=True)
class Adopt:
    """Adopt the attempt of the workers: the stored status has an earlier one."""

    attempt: int
    group: Group | None
    """The pods of the attempt; None: all were created for it."""
    address: str
    """The address of worker 0 where the rendezvous is open; empty where it is not."""


@dataclass(frozen=True, slots=True)
class Complete:
    """Complete the job: its workers have succeeded."""


@dataclass(frozen=True, slots=True)
class Suspend:
    """Suspend the job: `lifecycle.suspend` is set."""


@dataclass(frozen=True, slots=True)
class Resume:
    """Resume the suspended job."""


@dataclass(frozen=True, slots=True)
class Hold:
    """Let the job wait in its queue, without pods."""

    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class Admit:
    """Start the job: its queue has admitted it, or it has no queue any more."""

    admission: Admission | None
    message: str


@dataclass(frozen=True, slots=True)
class Fail:
    """Fail the job permanently."""

    reason: Reason
    message: str
    """The cause, and the limit that the job has reached."""
    changes: StatusChanges = field(default_factory=StatusChanges)
    """The counters with the end of this attempt in them."""


@dataclass(frozen=True, slots=True)
class Restart:
    """End the current attempt and start the next one."""

    reason: Reason
    message: str
    """The cause."""
    scope: str = ALL_WORKERS
    """A verb phrase that says what is restarted."""
    delay_seconds: int = 0
    """Seconds of backoff before the next attempt."""
    changes: StatusChanges = field(default_factory=StatusChanges)
    """The changes of the status beyond those that each new attempt makes."""
    conditions: Sequence[ConditionUpdate] = ()
    """Conditions beyond Restarting and Running."""
    afresh: bool = False
    """Whether earlier failures predict nothing of the next attempt, since the job was changed."""


Decision = Adopt | Complete | Suspend | Resume | Hold | Admit | Fail | Restart


@dataclass(frozen=True, slots=True)
class CreateService:
    """Create the headless Service through which workers find each other."""


@dataclass(frozen=True, slots=True)
class CreatePodGroup:
    """Create the PodGroup of the group's pods, as the status has it. It comes before the pods: its scheduler holds them until it exists."""


@dataclass(frozen=True, slots=True)
class DeletePodGroups:
    """Delete all PodGroups of the job: they may hold the capacity of a queue for pods that do not come."""

    scheduler: GangScheduler


@dataclass(frozen=True, slots=True)
class CreateWorker:
    """Create the pod of a worker."""

    index: int
    attempt: int
    workers: int
    """The size of the group for which it is created."""
    recreated: int = 0
    """How often the pod was created before in this attempt."""


@dataclass(frozen=True, slots=True)
class DeletePod:
    """Delete the pod with this UID, and no later one of the same name."""

    name: str
    uid: str
    reason: Reason


@dataclass(frozen=True, slots=True)
class StopPod:
    """Stop the containers of the pod with this UID, and keep the pod with its logs."""

    name: str
    uid: str
    reason: Reason


@dataclass(frozen=True, slots=True)
class RemovePod:
    """Delete the pod with this UID by force, although its node has not reported its end. Nothing else waits for this."""

    name: str
    uid: str
    note: str
    """The reason, as a sentence for people."""


@dataclass(frozen=True, slots=True)
class DeleteJob:
    """Delete the TrainingJob itself."""

    reason: Reason


@dataclass(frozen=True, slots=True)
class CreateWorkload:
    """Create the Workload with which the job enters its queue."""

    pod_sets: Sequence[PodSet]
    gang: PodGroup | None = None
    """The PodGroup that its pods will have, if any."""


@dataclass(frozen=True, slots=True)
class ChangeWorkload:
    """Change this version of a Workload, and no later one."""

    name: str
    uid: str
    version: int
    change: WorkloadChange
    pod_sets: Sequence[PodSet] = ()
    """What the job asks for, where the change needs that."""
    gang: PodGroup | None = None
    """The PodGroup that its pods will have, if any."""


@dataclass(frozen=True, slots=True)
class DeleteWorkload:
    """Delete the Workload with this UID."""

    name: str
    uid: str


PodAction = CreateWorker | DeletePod | StopPod | RemovePod
PodGroupAction = CreatePodGroup | DeletePodGroups
WorkloadAction = CreateWorkload | ChangeWorkload | DeleteWorkload
Action = CreateService | PodAction | PodGroupAction | WorkloadAction | DeleteJob


@dataclass(frozen=True, slots=True)
class Event:
    """A Kubernetes event, posted once the status that it reports is stored."""

    type: Literal["Normal", "Warning"]
    reason: Reason
    note: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the check that applies has decided. `plan` stores it in the status once, and returns the Plan."""

    changes: StatusChanges = field(default_factory=StatusChanges)
    conditions: Sequence[ConditionUpdate] = ()
    actions: Sequence[Action] = ()
    events: Sequence[Event] = ()
    requeue_after: float | None = None


@dataclass(frozen=True, slots=True)
class PodChanges:
    """The actions of an attempt that continues, or of a job at rest. The report adds what is observed, and makes the outcome."""

    actions: Sequence[Action] = ()
    waits: Sequence[float] = ()
    """The seconds until each next time at which the plan may change by itself."""
    events: Sequence[Event] = ()
    rendezvous: Rendezvous | None = None
    """The rendezvous, where it opens now."""
    changes: StatusChanges = field(default_factory=StatusChanges)
    """The changes of the status that follow from the actions."""
    resizing: str = ""
    """What the joining workers wait for; empty where none is to join."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do now: carry out `actions`, store `status`, post `events`, look again after `requeue_after` seconds.

    A plan that stores a transition (a new attempt, completion) holds no actions. The next reconcile acts on the stored
    transition. So an operator that dies between the two counts nothing twice and loses nothing.
    """

    status: TrainingJobStatus
    actions: Sequence[Action] = ()
    events: Sequence[Event] = ()
    requeue_after: float | None = None


def whole_seconds(wait: timedelta) -> float:
    """Return the wait for `requeue_after`, rounded up: a reconcile sees whole seconds, and a fraction would be repeated."""
    return float(ceil(wait.total_seconds()))


def soonest(waits: Sequence[float]) -> float | None:
    """Return the shortest of these waits, 0 at least; None where there is none."""
    return max(0.0, min(waits)) if waits else None
