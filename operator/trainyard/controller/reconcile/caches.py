"""The operator's view of the cluster. No I/O: scopes write the caches, reconciles read them between awaits."""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from trainyard.controller.reconcile.node_places import NodePlaces
from trainyard.controller.reconcile.resources import (
    JobRecord,
    ServiceRecord,
    pod_record,
    service_record,
    workload_record,
)
from trainyard.coordinator.agent_registry import AgentRegistry
from trainyard.domain.state.accelerators import ACCELERATORS, AcceleratorTable
from trainyard.domain.state.gang_schedulers import NO_GANG_SCHEDULERS, GangSchedulers
from trainyard.domain.state.queue_choice import with_queue
from trainyard.domain.state.snapshot import JobView, Snapshot
from trainyard.domain.state.worker_views import PodView, WorkerReport
from trainyard.domain.state.workload import Queueing, WorkloadView
from trainyard.kube.resource import PODS, WORKLOADS, Resource
from trainyard.kube.store import Store
from trainyard.scheduling.placement import placement_order

REMOVED = "removed pods"
"""The tracker's name for pods that were deleted by force: a deletion timestamp is not enough for them."""


@dataclass(frozen=True, slots=True)
class Cache:
    """The stores of one scope, all of them indexed by the job's UID.

    There is one for each namespace that is watched separately. A list, a bookmark and the newest version belong to one
    watch, and say nothing about objects of another.
    """

    jobs: Store[JobRecord, str] = field(default_factory=lambda: Store(lambda job: job.uid))
    pods: Store[PodView, str] = field(default_factory=lambda: Store(lambda pod: pod.job_uid))
    accelerators: AcceleratorTable = field(default_factory=lambda: ACCELERATORS)
    """How the processes of workers are counted."""
    places: NodePlaces = field(default_factory=NodePlaces)
    """Where nodes are in the network and what is wrong with them, as far as that is known."""
    services: Store[ServiceRecord, str] = field(default_factory=lambda: Store(lambda service: service.job_uid))
    workloads: Store[WorkloadView, str] = field(default_factory=lambda: Store(lambda workload: workload.job_uid))
    """Empty where the operator is installed without Kueue."""
    workloads_listed: asyncio.Event | None = None
    """Set once all Workloads have been listed; None: the operator is installed without Kueue."""

    def snapshot(
        self,
        job: JobRecord,
        *,
        agent: bool = False,
        reports: Sequence[WorkerReport] = (),
        agent_registry: AgentRegistry | None = None,
        gang_schedulers: GangSchedulers = NO_GANG_SCHEDULERS,
    ) -> Snapshot | None:
        """Return everything that a decision on the job needs, as of now; None if the job cannot be read.

        `agent`: whether an agent is injected into workers; `reports`: the agents' progress reports; `agent_registry`: which
        agents are connected. `gang_schedulers`: the gang schedulers that the operator may use.

        Only the job's own namespace counts. An owner reference to a job in another one is forged by somebody without
        permission there.
        """
        if job.view is None:
            return None
        view = with_queue(job.view, gang_schedulers, kueue=self.workloads_listed is not None)
        pods = self.pods_of(view)
        has_service = any(service.namespace == job.namespace for service in self.services.of(job.uid))
        snapshot = Snapshot(
            view,
            pods,
            has_service=has_service,
            agent=agent,
            reports=reports,
            agents=agent_registry.of(job.uid, [pod.uid for pod in pods]) if agent_registry else {},
            queueing=self._queueing(job) if view.queue or self.workloads.count(job.uid) else None,
            gang_schedulers=gang_schedulers,
            coordinator_up_since=agent_registry.since_for([pod.ip for pod in pods]) if agent_registry else None,
            node_signals=self.places.troubled(pod.node for pod in pods if pod.node),
        )
        if order := placement_order(snapshot, self.places.of):
            return replace(snapshot, order_by_placement=order)
        return snapshot

    def pod_record(self, raw: Mapping[str, Any]) -> PodView:
        """Parse a pod with our label. Raises KeyError or ValueError if it is no worker of a job."""
        return pod_record(raw, self.places.labels)

    def _queueing(self, job: JobRecord) -> Queueing | None:
        """Return what is known of the job's queue; None where the operator is installed without Kueue."""
        if self.workloads_listed is None:
            return None
        own = [each for each in self.workloads.of(job.uid) if each.namespace == job.namespace]
        return Queueing(own, readable=self.workloads_listed.is_set())

    def pods_of(self, job: JobView) -> tuple[PodView, ...]:
        """Return the pods of a job, in its own namespace alone."""
        return tuple(pod for pod in self.pods.of(job.uid) if pod.namespace == job.namespace)

    def add_found(self, resource: Resource, raw: Mapping[str, Any]) -> bool:
        """Add a pod, a Service or a Workload that exists and was unknown. Returns whether it is known now and was not before.

        This makes up for a lost event. An object without our label stays unknown.
        """
        try:
            if resource == PODS:
                return bool(self.pods.record_found(self.pod_record(raw)))
            if resource == WORKLOADS:
                return bool(self.workloads.record_found(workload_record(raw)))
            return bool(self.services.record_found(service_record(raw)))
        except (KeyError, ValueError):
            return False

    def add_created(self, raw: Mapping[str, Any]) -> None:
        """Add a pod that this process has created. A lost event must not hide it, or it would run beside the next
        attempt.
        """
        with suppress(KeyError, ValueError):
            self.pods.record_created(self.pod_record(raw))

    def add_created_workload(self, raw: Mapping[str, Any]) -> None:
        """Add a Workload that this process has created. A lost event must not let it be created twice."""
        with suppress(KeyError, ValueError):
            self.workloads.record_created(workload_record(raw))

    def newest_versions(self) -> dict[str, int]:
        """Return the newest known resource version of each kind that a job owns."""
        versions = {"pods": self.pods.seen, "services": self.services.seen}
        return versions if self.workloads_listed is None else {**versions, WORKLOADS.plural: self.workloads.seen}

    def is_deleting(self, resource: str, uid: str) -> bool:
        """Return whether the cache shows this object as being deleted, or not at all."""
        if resource == WORKLOADS.plural:
            workload = self.workloads.get(uid)
            return workload is None or workload.deleting
        if resource not in {"pods", REMOVED}:
            return True
        pod = self.pods.get(uid)
        return pod is None or (pod.removed if resource == REMOVED else pod.deletion_time is not None)


@dataclass(frozen=True, slots=True)
class Caches:
    """The caches of all scopes: one for all namespaces (None), or one for each watched namespace."""

    by_namespace: Mapping[str | None, Cache]

    @classmethod
    def empty(
        cls,
        namespaces: Iterable[str] = (),
        accelerators: AcceleratorTable = ACCELERATORS,
        places: NodePlaces | None = None,
        *,
        kueue: bool = False,
    ) -> "Caches":
        """Return empty caches of these namespaces, or of all if none is given.

        `places`: those of the nodes, which all share; `kueue`: with Kueue's Workloads.
        """
        places = places or NodePlaces()
        return cls(
            {
                namespace: Cache(
                    accelerators=accelerators, places=places, workloads_listed=asyncio.Event() if kueue else None
                )
                for namespace in tuple(namespaces) or (None,)
            }
        )

    def of(self, namespace: str) -> Cache:
        """Return the cache that holds the objects of this namespace."""
        return self.by_namespace[None if None in self.by_namespace else namespace]

    def job(self, uid: str) -> JobRecord | None:
        """Return the job with this UID, in whichever namespace."""
        return next((job for cache in self.by_namespace.values() if (job := cache.jobs.get(uid))), None)

    def pods(self) -> Iterator[PodView]:
        """Yield the pods of all jobs."""
        for cache in self.by_namespace.values():
            yield from cache.pods.values()

    def jobs(self) -> list[JobRecord]:
        """Return all jobs."""
        stores = [cache.jobs for cache in self.by_namespace.values()]
        return [job for store in stores for uid in store.keys() if (job := store.get(uid))]  # noqa: SIM118 - a store is no dict
