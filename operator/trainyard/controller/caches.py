"""What the operator knows of the cluster: TrainingJobs by kopf's watch and an own list, pods and Services by reflectors."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from trainyard.api.constants import LABEL_JOB_UID
from trainyard.controller.resources import JobRecord, ServiceRecord, service_record
from trainyard.domain.model import PodView, Snapshot
from trainyard.domain.observe import owner_uid, pod_view
from trainyard.kube.reflector import Reflector
from trainyard.kube.resource import PODS, SERVICES
from trainyard.kube.session import Session
from trainyard.kube.store import Store


@dataclass(frozen=True, slots=True)
class Caches:
    """The stores, all of them indexed by the job's UID."""

    jobs: Store[JobRecord, str]
    pods: Store[PodView, str]
    services: Store[ServiceRecord, str]

    @classmethod
    def empty(cls) -> "Caches":
        """Nothing known yet."""
        return cls(
            Store(lambda job: job.uid),
            Store(lambda pod: pod.job_uid),
            Store(lambda service: service.job_uid),
        )

    def snapshot(self, job: JobRecord) -> Snapshot | None:
        """All that a decision on the job rests on, as of now; None where the job cannot be read."""
        if job.view is None:
            return None
        return Snapshot(job.view, self.pods.of(job.uid), has_service=bool(self.services.of(job.uid)))

    def seen(self) -> dict[str, int]:
        """The newest version heard of in each cache."""
        return {"pods": self.pods.seen, "services": self.services.seen, "trainingjobs": self.jobs.seen}

    def going(self, resource: str, uid: str) -> bool:
        """Whether the cache shows this object as being deleted, or not at all."""
        if resource != "pods":
            return True
        pod = self.pods.get(uid)
        return pod is None or pod.deletion_time is not None


def reflectors(
    session: Session, caches: Caches, on_change: Callable[[str], None]
) -> tuple[Reflector[PodView, str], Reflector[ServiceRecord, str]]:
    """The watches on pods and Services; only those that belong to a job are asked for."""
    return (
        Reflector(session, PODS, _owned_pod, caches.pods, on_change, label_selector=LABEL_JOB_UID),
        Reflector(session, SERVICES, service_record, caches.services, on_change, label_selector=LABEL_JOB_UID),
    )


def _owned_pod(raw: Mapping[str, Any]) -> PodView:
    """A pod counts for the job that controls it: a label can be copied, an owner reference means it."""
    pod = pod_view(raw)
    if owner_uid(raw) != pod.job_uid:
        raise ValueError(f"its label {LABEL_JOB_UID} names another job than its owner reference")
    return pod
