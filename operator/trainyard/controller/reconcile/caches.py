"""What the operator knows of the cluster, as last heard. No I/O: scopes write it, passes read it between awaits."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from trainyard.controller.reconcile.resources import JobRecord, ServiceRecord, pod_record, service_record
from trainyard.coordinator.agent_registry import AgentRegistry
from trainyard.domain.state.snapshot import PodView, Snapshot, WorkerReport
from trainyard.kube.resource import PODS, Resource
from trainyard.kube.store import Store

REMOVED = "removed pods"
"""What the tracker calls pods that were deleted by force: for them it is not enough to be on their way out."""


@dataclass(frozen=True, slots=True)
class Cache:
    """What one scope holds: the stores, all of them indexed by the job's UID.

    One for each namespace that is watched by itself. A list, a bookmark, the newest version heard: they are always those of
    one watch and say nothing about the objects of another.
    """

    jobs: Store[JobRecord, str] = field(default_factory=lambda: Store(lambda job: job.uid))
    pods: Store[PodView, str] = field(default_factory=lambda: Store(lambda pod: pod.job_uid))
    services: Store[ServiceRecord, str] = field(default_factory=lambda: Store(lambda service: service.job_uid))

    def snapshot(
        self,
        job: JobRecord,
        *,
        agent: bool = False,
        reports: Sequence[WorkerReport] = (),
        agent_registry: AgentRegistry | None = None,
    ) -> Snapshot | None:
        """All that a decision on the job rests on, as of now; None where the job cannot be read.

        `agent`: whether there is one to bring into workers; `reports`: what those there have told; `agent_registry`: who of them is there.

        Of its own namespace alone: an owner reference to a job in another one is the work of somebody who has no rights there.
        """
        view = job.view
        if view is None:
            return None
        pods = tuple(pod for pod in self.pods.of(job.uid) if pod.namespace == job.namespace)
        has_service = any(service.namespace == job.namespace for service in self.services.of(job.uid))
        return Snapshot(
            view,
            pods,
            has_service=has_service,
            agent=agent,
            reports=reports,
            agents=agent_registry.of(job.uid, [pod.uid for pod in pods]) if agent_registry else {},
            coordinator_up_since=agent_registry.since if agent_registry else None,
        )

    def notice(self, resource: Resource, raw: Mapping[str, Any]) -> bool:
        """A pod or a Service was read, because it is there and was not known of. Returns whether it is known now and was not before.

        An event that was lost without a word is made up for by this. What lacks our label stays unknown.
        """
        try:
            if resource == PODS:
                return bool(self.pods.record_found(pod_record(raw)))
            return bool(self.services.record_found(service_record(raw)))
        except (KeyError, ValueError):
            return False

    def made(self, raw: Mapping[str, Any]) -> None:
        """This process has made a pod: no lost event makes it unknown, and so alive beside those of the next attempt."""
        with suppress(KeyError, ValueError):
            self.pods.record_created(pod_record(raw))

    def seen(self) -> dict[str, int]:
        """The newest version heard of, of each kind that a job owns."""
        return {"pods": self.pods.seen, "services": self.services.seen}

    def going(self, resource: str, uid: str) -> bool:
        """Whether this object is shown as being deleted, or not at all."""
        if resource not in {"pods", REMOVED}:
            return True
        pod = self.pods.get(uid)
        return pod is None or (pod.removed if resource == REMOVED else pod.deletion_time is not None)


@dataclass(frozen=True, slots=True)
class Caches:
    """The caches of all scopes: one for all namespaces (None), or one for each that is watched."""

    by_namespace: Mapping[str | None, Cache]

    @classmethod
    def empty(cls, namespaces: Iterable[str] = ()) -> "Caches":
        """Nothing known yet, of these namespaces or (none given) of all."""
        return cls({namespace: Cache() for namespace in tuple(namespaces) or (None,)})

    def of(self, namespace: str) -> Cache:
        """The cache in which the objects of this namespace are."""
        return self.by_namespace[None if None in self.by_namespace else namespace]

    def job(self, uid: str) -> JobRecord | None:
        """The job with this UID, wherever it is."""
        return next((job for cache in self.by_namespace.values() if (job := cache.jobs.get(uid))), None)

    def jobs(self) -> list[JobRecord]:
        """All jobs."""
        stores = [cache.jobs for cache in self.by_namespace.values()]
        return [job for store in stores for uid in store.keys() if (job := store.get(uid))]  # noqa: SIM118 - a store is no dict
