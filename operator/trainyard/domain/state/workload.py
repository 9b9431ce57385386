"""What is known of the queue of a job: what the job asks for, and its Workload, as Kueue and the operator have written it. Pure.

A Workload is Kueue's object of one job. The API server's schema is trusted, the content is not. An object without the fields that the
operator writes raises KeyError or ValueError, and is ignored.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainyard.api.constants import (
    ANNOTATION_TEMPLATE_HASH,
    LABEL_JOB_UID,
    LABEL_MAX_EXECUTION,
    LABEL_QUEUE,
    LABEL_QUEUE_PRIORITY,
    PROVISIONING_PREFIX,
)
from trainyard.api.internal_status import Admission
from trainyard.api.reasons import Reason
from trainyard.api.scheduling import Scheduling
from trainyard.domain.workload_changes import PodSet

FINALIZER = "kueue.x-k8s.io/resource-in-use"
"""Kueue's finalizer: a Workload stays, with its quota, until the operator has stopped the pods."""
MAX_EXECUTION_DIGITS = 9

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class QueueRequest:
    """What a job asks of a queue."""

    queue: str
    """The LocalQueue."""
    label: str = ""
    """The LocalQueue that Kueue's label names; empty where the spec alone has one."""
    priority_class: str = ""
    """The WorkloadPriorityClass that Kueue's label names; empty: the pods' PriorityClass decides."""
    max_execution_seconds: int | None = None
    annotations: Mapping[str, str] = field(default_factory=dict)
    """Parameters of provisioning requests."""


def queue_request(scheduling: Scheduling, metadata: Json) -> QueueRequest | None:
    """Return what the job asks of a queue, by its spec or Kueue's labels; None where it has no queue.

    The queue in the spec wins. It may be one of Volcano: `queue_choice` decides that.
    """
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    label = labels.get(LABEL_QUEUE) or ""
    queue = scheduling.queue or label
    if not queue:
        return None
    seconds = labels.get(LABEL_MAX_EXECUTION) or ""
    return QueueRequest(
        queue,
        label,
        labels.get(LABEL_QUEUE_PRIORITY) or "",
        int(seconds) if seconds.isdecimal() and len(seconds) <= MAX_EXECUTION_DIGITS and int(seconds) else None,
        {name: value for name, value in annotations.items() if name.startswith(PROVISIONING_PREFIX)},
    )


@dataclass(frozen=True, slots=True)
class WorkloadCondition:
    """A condition of a Workload, whole: a patch of the list repeats those that do not change."""

    type: str
    holds: bool
    reason: str
    message: str
    raw: str
    """All of it, as JSON text."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """What Kueue has assigned to the pods of one role."""

    role: str
    count: int
    flavors: tuple[str, ...] = ()
    """The ResourceFlavors, in the order of their resources."""
    has_topology: bool = False
    """Whether Kueue has chosen the nodes too."""


@dataclass(frozen=True, slots=True)
class AdmissionCheck:
    """The state of an admission check, and what it gives to the pods: labels, annotations, node labels, tolerations."""

    name: str
    state: str
    message: str = ""
    updates: tuple[Json, ...] = ()


@dataclass(frozen=True, slots=True)
class WorkloadView:
    """A Workload of a job."""

    uid: str
    namespace: str
    name: str
    resource_version: int
    job_uid: str
    queue: str
    generation: int = 0
    pod_sets: tuple[PodSet, ...] = ()
    conditions: tuple[WorkloadCondition, ...] = ()
    assignments: tuple[Assignment, ...] = ()
    """Empty while no quota is reserved."""
    cluster_queue: str = ""
    checks: tuple[AdmissionCheck, ...] = ()
    reclaimable: tuple[tuple[str, int], ...] = ()
    """By role, the pods that are done and whose quota is free again."""
    executed_seconds: int = 0
    """For how long it was admitted before, which counts towards its maximum execution time."""
    active: bool = True
    deleting: bool = False
    finalizers: tuple[str, ...] = ()
    priority_class: str = ""
    """The WorkloadPriorityClass; empty where another kind of class decides."""
    template_hash: str = ""
    """The hash of the job's template from which it was created."""

    def condition(self, kind: str) -> WorkloadCondition | None:
        """Return the condition of this type, if there is one."""
        return next((each for each in self.conditions if each.type == kind), None)

    def holds(self, kind: str) -> bool:
        """Return whether the condition is True."""
        found = self.condition(kind)
        return found is not None and found.holds

    @property
    def finished(self) -> bool:
        """Whether it has ended. It is never admitted again."""
        return self.holds("Finished")

    @property
    def evicted(self) -> bool:
        """Whether Kueue wants the quota back, or has got it back."""
        return self.holds("Evicted")

    @property
    def reserved(self) -> bool:
        """Whether it holds quota."""
        return self.holds("QuotaReserved")

    @property
    def admitted(self) -> bool:
        """Whether its pods may run."""
        return self.holds("Admitted") and self.reserved and not (self.evicted or self.finished or self.deleting)


@dataclass(frozen=True, slots=True)
class QueueHold:
    """Why a job may have no pods now: its queue has not admitted it, or wants the quota back."""

    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class Queueing:
    """What the operator knows of the queue of a job."""

    workloads: Sequence[WorkloadView] = ()
    """The Workloads of the job."""
    readable: bool = True
    """Whether all Workloads have been listed: only then is a missing one known to be missing."""
    offer: Admission | None = None
    """The admission of the Workload, where it is not stored yet."""
    problem: str = ""
    """Why no pods can be created from the admission."""

    @property
    def workload(self) -> WorkloadView | None:
        """The Workload that counts: one that is not being deleted."""
        by_age = sorted(self.workloads, key=lambda each: (each.deleting, each.name))
        return by_age[0] if by_age else None


def workload_view(raw: Json) -> WorkloadView:
    """Return a Workload of a job. Raises KeyError where it lacks a field that each of ours has."""
    metadata, spec, status = raw["metadata"], raw["spec"], raw.get("status") or {}
    admission = status.get("admission") or {}
    priority = spec.get("priorityClassRef") or {}
    return WorkloadView(
        uid=metadata["uid"],
        namespace=metadata["namespace"],
        name=metadata["name"],
        resource_version=int(metadata["resourceVersion"]),
        job_uid=metadata["labels"][LABEL_JOB_UID],
        queue=spec.get("queueName") or "",
        generation=metadata.get("generation", 0),
        pod_sets=tuple(PodSet(each["name"], each["count"], each.get("minCount")) for each in spec["podSets"]),
        conditions=tuple(map(_condition, status.get("conditions") or ())),
        assignments=tuple(map(_assignment, admission.get("podSetAssignments") or ())),
        cluster_queue=admission.get("clusterQueue") or "",
        checks=tuple(map(_check, status.get("admissionChecks") or ())),
        reclaimable=tuple((each["name"], each["count"]) for each in status.get("reclaimablePods") or ()),
        executed_seconds=status.get("accumulatedPastExecutionTimeSeconds") or 0,
        active=spec.get("active", True),
        deleting="deletionTimestamp" in metadata,
        finalizers=tuple(metadata.get("finalizers") or ()),
        priority_class=priority.get("name", "") if priority.get("kind") == "WorkloadPriorityClass" else "",
        template_hash=(metadata.get("annotations") or {}).get(ANNOTATION_TEMPLATE_HASH) or "",
    )


def _condition(raw: Json) -> WorkloadCondition:
    holds = raw["status"] == "True"
    return WorkloadCondition(raw["type"], holds, raw.get("reason") or "", raw.get("message") or "", json.dumps(raw))


def _assignment(raw: Json) -> Assignment:
    flavors = tuple(dict.fromkeys((raw.get("flavors") or {}).values()))
    return Assignment(raw["name"], raw.get("count", 0), flavors, raw.get("topologyAssignment") is not None)


def _check(raw: Json) -> AdmissionCheck:
    updates = tuple(raw.get("podSetUpdates") or ())
    return AdmissionCheck(raw["name"], raw.get("state") or "", raw.get("message") or "", updates)
