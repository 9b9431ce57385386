"""Builders of Workloads, as Kueue and the operator have written them: `workload(3).admitted().evicted("Preempted")`."""

import json
from dataclasses import dataclass, replace
from typing import Any

from tests.support.jobs import UID, Scene, job
from trainyard.api.internal_status import Admission, AdmittedPods
from trainyard.domain.state.workload import FINALIZER, Assignment, WorkloadCondition, WorkloadView
from trainyard.domain.workload_changes import PodSet

QUEUE: dict[str, Any] = {"scheduling": {"queue": "team"}}
NAME, WORKLOAD_UID = "trainingjob-train-1", "workload-uid"
ADMISSION = Admission(
    workload=NAME,
    uid=WORKLOAD_UID,
    cluster_queue="cluster",
    pods=[AdmittedPods(role="worker", count=3, node_selector={"pool": "gpu"})],
)


def kueue_condition(kind: str, *, holds: bool = True, reason: str = "Because", message: str = "") -> WorkloadCondition:
    """Return a condition of a Workload that was set at noon."""
    raw = {
        "type": kind,
        "status": "True" if holds else "False",
        "reason": reason,
        "message": message,
        "lastTransitionTime": "2026-01-02T11:59:00Z",
        "observedGeneration": 1,
    }
    return WorkloadCondition(kind, holds, reason, message, json.dumps(raw))


@dataclass(frozen=True, slots=True)
class Workload:
    """A Workload of the job of `tests.support.jobs`. Each method returns another one."""

    view: WorkloadView

    def change(self, **fields: Any) -> "Workload":
        """Change fields."""
        return Workload(replace(self.view, **fields))

    def condition(self, kind: str, *, holds: bool = True, reason: str = "Because", message: str = "") -> "Workload":
        """Set a condition."""
        kept = [each for each in self.view.conditions if each.type != kind]
        return self.change(conditions=(*kept, kueue_condition(kind, holds=holds, reason=reason, message=message)))

    def reserved(self, workers: int | None = None) -> "Workload":
        """Reserve quota for so many workers, or for all."""
        counts = [
            workers if workers is not None and each.role == "worker" else each.count for each in self.view.pod_sets
        ]
        given = tuple(
            Assignment(each.role, count, ("gpu",)) for each, count in zip(self.view.pod_sets, counts, strict=True)
        )
        return self.condition("QuotaReserved").change(assignments=given, cluster_queue="cluster")

    def admitted(self, workers: int | None = None) -> "Workload":
        """Admit it."""
        return self.reserved(workers).condition("Admitted")

    def evicted(self, reason: str = "Preempted", message: str = "for another job") -> "Workload":
        """Ask for the quota back."""
        return self.condition("Evicted", reason=reason, message=message)


def workload(workers: int = 3, scene: Scene | None = None, **fields: Any) -> Workload:
    """Return a Workload that waits, and fits this job."""
    fits = (scene or job(workers, **QUEUE)).job
    made: dict[str, Any] = {
        "uid": WORKLOAD_UID,
        "namespace": "ns",
        "name": NAME,
        "resource_version": 7,
        "job_uid": UID,
        "queue": "team",
        "generation": 2,
        "pod_sets": (PodSet("worker", workers),),
        "finalizers": (FINALIZER,),
        "template_hash": fits.template_hash,
    }
    return Workload(WorkloadView(**{**made, **fields}))
