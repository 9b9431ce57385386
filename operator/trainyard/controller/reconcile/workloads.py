"""Read and write what Kueue and the operator share: Workloads, and the flavors and classes that these name. Decides nothing."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime

from trainyard.api.reasons import Reason
from trainyard.controller.reconcile.caches import Caches
from trainyard.domain.decisions import ChangeWorkload, CreateWorkload
from trainyard.domain.state.snapshot import JobView, Snapshot
from trainyard.domain.state.workload import FINALIZER, WorkloadView
from trainyard.domain.workload_changes import DropFinalizer
from trainyard.engine.tracker import WriteTracker
from trainyard.frameworks.worker_spec import Json, Worker
from trainyard.kube.apply import Writer
from trainyard.kube.errors import ApiError
from trainyard.kube.resource import PRIORITY_CLASSES, RESOURCE_FLAVORS, WORKLOAD_PRIORITY_CLASSES, WORKLOADS, Resource
from trainyard.queues.admission import (
    UnusableAdmissionError,
    conflicts,
    flavor_names,
    needs_reading,
    read_admission,
)
from trainyard.queues.workload import Priority, as_new, members_of, workload
from trainyard.queues.workload_patch import workload_patch

_LOG = logging.getLogger(__name__)

ORPHAN_RETRY_SECONDS = 5.0
"""When to look again at the Workload of a job that is gone, whose pods still run."""


@dataclass(frozen=True, slots=True)
class QueueRefusedError(Exception):
    """The job cannot enter its queue, and somebody has to act."""

    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class Workloads:
    """Requests about Workloads. Created only where the operator is installed with Kueue."""

    writer: Writer
    tracker: WriteTracker[str]
    caches: Caches
    now: Callable[[], datetime]

    async def explain(self, snapshot: Snapshot) -> Snapshot:
        """Return the snapshot with the admission of the Workload, if it is new: its flavors are read once."""
        admitted, queueing = needs_reading(snapshot), snapshot.queueing
        if admitted is None or queueing is None:
            return snapshot
        try:
            flavors = {name: await self._get(RESOURCE_FLAVORS, name) for name in flavor_names(admitted)}
            offer = read_admission(admitted, flavors)
        except UnusableAdmissionError as error:
            return replace(snapshot, queueing=replace(queueing, problem=str(error)))
        except ApiError as error:
            if error.retryable:
                raise
            return replace(snapshot, queueing=replace(queueing, problem=f"cannot read a ResourceFlavor: {error}"))
        if problem := conflicts(snapshot, offer):
            return replace(snapshot, queueing=replace(queueing, problem=problem))
        return replace(snapshot, queueing=replace(queueing, offer=offer))

    async def manifest(
        self, job: JobView, action: CreateWorkload | ChangeWorkload, build: Callable[[JobView, Worker], Json]
    ) -> Json:
        """Return the Workload that the job needs. `build` returns the pod of a member. Raises QueueRefusedError."""
        new = as_new(job, action.gang)
        pods = [build(new, each) for each in members_of(new, action.pod_sets)]
        return workload(job, action.pod_sets, pods, await self._priority(job))

    async def change(self, job: JobView, action: ChangeWorkload, build: Callable[[JobView, Worker], Json]) -> bool:
        """Patch the Workload, if it still is as it was seen. Returns whether the caches will soon show something new."""
        held = self._held(job, action.uid)
        if held is None or held.resource_version != action.version:
            return True
        wanted = await self.manifest(job, action, build) if action.pod_sets else None
        return await self._patch(job.uid, held, action, wanted)

    async def release_orphans(self, uid: str) -> float | None:
        """Let Kubernetes delete the Workloads of a job that is gone. Returns the seconds until the next look, if any."""
        orphans = [
            each
            for cache in self.caches.by_namespace.values()
            for each in cache.workloads.of(uid)
            if each.deleting and FINALIZER in each.finalizers
        ]
        if not orphans:
            return None
        if any(not pod.ended for cache in self.caches.by_namespace.values() for pod in cache.pods.of(uid)):
            return ORPHAN_RETRY_SECONDS
        for each in orphans:
            await self._patch(uid, each, ChangeWorkload(each.name, each.uid, each.resource_version, DropFinalizer()))
        return None

    async def _patch(self, owner: str, held: WorkloadView, action: ChangeWorkload, wanted: Json | None = None) -> bool:
        patch = workload_patch(held, action.change, self.now(), wanted)
        try:
            made = await self.writer.merge(
                WORKLOADS, held.namespace, held.name, patch.body, subresource=patch.subresource
            )
        except ApiError as error:
            # Another version: its event is on the way, and the next reconcile decides from it.
            if error.conflict or error.not_found:
                return True
            raise
        _LOG.info(f"changed a workload name={held.name} change={type(action.change).__name__}")
        self.tracker.wrote(owner, WORKLOADS.plural, int(made["metadata"]["resourceVersion"]))
        return True

    def _held(self, job: JobView, uid: str) -> WorkloadView | None:
        return self.caches.of(job.namespace).workloads.get(uid)

    async def _priority(self, job: JobView) -> Priority:
        """Return the priority of the job: of the WorkloadPriorityClass of its label, else of the PriorityClass of its pods."""
        request = job.queue
        if request and request.priority_class:
            return await self._class(WORKLOAD_PRIORITY_CLASSES, request.priority_class)
        return await self._class(PRIORITY_CLASSES, job.priority_class) if job.priority_class else Priority()

    async def _class(self, resource: Resource, name: str) -> Priority:
        found = await self._get(resource, name)
        if found is None:
            raise QueueRefusedError(
                Reason.PRIORITY_CLASS_MISSING,
                f"the job cannot enter its queue: there is no {resource.kind} {name}; create it, or name another one",
            )
        return Priority(int(found.get("value", 0)), resource.group, resource.kind, name)

    async def _get(self, resource: Resource, name: str) -> Json | None:
        """Return an object of the whole cluster, or None."""
        return await self.writer.get(resource, None, name)
