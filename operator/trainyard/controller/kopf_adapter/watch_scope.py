"""Watch the jobs, pods and Services of one namespace, or of the whole cluster, and queue the jobs once this process leads.

Decides nothing about jobs.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from typing_extensions import override

from trainyard.api.constants import LABEL_JOB_UID
from trainyard.controller.bootstrap.health import Watch
from trainyard.controller.kopf_adapter.shell import EventHandler
from trainyard.controller.reconcile.caches import Cache
from trainyard.controller.reconcile.resources import (
    PAGE_JOBS,
    TRAINING_JOBS,
    JobRecord,
    job_record,
    service_record,
    workload_record,
)
from trainyard.domain.state.accelerators import ACCELERATORS, AcceleratorTable
from trainyard.domain.state.workload import WorkloadView
from trainyard.engine.queue import WorkQueue
from trainyard.kube.backoff import Backoff
from trainyard.kube.errors import ApiError
from trainyard.kube.listing import read_all
from trainyard.kube.permissions import Permission
from trainyard.kube.reflector import Reflector
from trainyard.kube.resource import PODS, SERVICES, WORKLOADS, namespace_label
from trainyard.kube.session import Session
from trainyard.kube.store import Store

_LOG = logging.getLogger(__name__)

POD_BATCH_SECONDS = 0.05
"""Changes to a job's pods within this time share one reconcile: five hundred starting pods cause ten, not a thousand."""
POD_BATCH_SECONDS_PER_POD = 0.0001
"""Added for each pod of the job. A reconcile reads all of them, so a large job is reconciled less often."""
WATCH_FORBIDDEN_RELIST_SECONDS = 15.0
"""Seconds between two lists while the account may not watch: only a list finds changes then."""


@dataclass(slots=True)
class JobInformer:
    """Keeps `jobs` equal to the API server's jobs of one namespace (None: of all), by kopf's watch and a periodic list.

    kopf does not compare lists: an object that is deleted while its watch is down would stay for ever. The list finds it,
    and every other missed change.
    """

    session: Session
    namespace: str | None
    jobs: Store[JobRecord, str]
    on_change: Callable[[str], None]
    relist_seconds: float
    accelerators: AcceleratorTable = field(default_factory=lambda: ACCELERATORS)
    """How the processes of workers are counted."""
    page_size: int = PAGE_JOBS
    clock: Callable[[], float] = time.monotonic
    backoff: Callable[[int], float] = field(default_factory=lambda: Backoff(cap=30.0))
    synced: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    missed: int = field(default=0, init=False)
    """Changes that a list found before the watch reported them."""
    _listed_at: float = field(init=False)
    _failures: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._listed_at = self.clock()

    def age(self) -> float:
        """Return the seconds since the jobs were last listed, or since this informer was created."""
        return self.clock() - self._listed_at

    def on_event(self, kind: str | None, raw: Mapping[str, Any]) -> None:
        """Apply an event of kopf's watch; `kind` is None for an object of its first list."""
        uid, version = raw["metadata"]["uid"], int(raw["metadata"]["resourceVersion"])
        if kind == "DELETED":
            self._notify(self.jobs.remove(uid, version))
        elif not self.jobs.knows(uid, version):
            self._notify(self.jobs.apply(job_record(raw, self.accelerators)))

    async def run(self) -> None:
        """List for ever."""
        while True:
            try:
                await self.relist()
                self._failures = 0
                await self._wait_until_due()
            except ApiError as error:
                self._failures += 1
                if self._failures == 1 and not error.permission_denied:
                    _LOG.warning(
                        f"retrying to list TrainingJobs in {namespace_label(self.namespace)}: {_describe(error)}"
                    )
                await asyncio.sleep(self.backoff(self._failures))

    async def relist(self) -> None:
        """List once, and compare the result with the cache."""
        path = TRAINING_JOBS.path(self.namespace)
        try:
            records, version = await read_all(self.session, path, {}, self.page_size, self._record)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ApiError(0, "MalformedAnswer", f"an item of the list is not a TrainingJob: {error!r}") from error
        changed = self.jobs.replace(records, int(version))
        self._listed_at = self.clock()
        if self.synced.is_set():
            self.missed += len(changed)
        self.synced.set()
        self._notify(changed)

    def _record(self, raw: dict[str, Any]) -> JobRecord:
        """Return the cached record if it has the same version: a list never holds all specs a second time."""
        known = self.jobs.get(raw["metadata"]["uid"])
        if known is not None and known.resource_version == int(raw["metadata"]["resourceVersion"]):
            return known
        return job_record(raw, self.accelerators)

    async def _wait_until_due(self) -> None:
        """Wait until the next list is due."""
        due = self.clock() + self.relist_seconds
        while (left := due - self.clock()) > 0:
            await asyncio.sleep(min(left, WATCH_FORBIDDEN_RELIST_SECONDS))
            if self._watch_permission in self.session.permissions.missing():
                return

    @property
    def _watch_permission(self) -> Permission:
        return Permission("watch", TRAINING_JOBS.qualified, self.namespace)

    def _notify(self, changed: set[str]) -> None:
        for uid in changed:
            self.on_change(uid)


def _describe(error: ApiError) -> str:
    return f"{error} (is the CRD installed?)" if error.not_found else str(error)


class WatchScope:
    """The watches of one namespace (None: of all), and whether their changes are queued.

    A standby's scopes are warm but closed: they keep the caches current and queue nothing. Opening one queues all of
    its jobs.
    """

    def __init__(
        self, session: Session, namespace: str | None, cache: Cache, queue: WorkQueue[str], relist_seconds: float
    ) -> None:
        self.namespace = namespace
        self.cache = cache
        self._queue = queue
        self.opened = False
        """Whether its jobs are reconciled."""
        self.job_informer = JobInformer(
            session, namespace, cache.jobs, self._queue_now, relist_seconds, accelerators=cache.accelerators
        )
        self.pods = Reflector(
            session,
            PODS,
            cache.pod_record,
            cache.pods,
            self._queue_soon,
            label_selector=LABEL_JOB_UID,
            namespace=namespace,
        )
        self.workloads = _workloads(session, namespace, cache, self._queue_now) if cache.workloads_listed else None
        """None: the operator is installed without Kueue."""
        self.services = Reflector(
            session,
            SERVICES,
            service_record,
            cache.services,
            self._queue_soon,
            label_selector=LABEL_JOB_UID,
            namespace=namespace,
        )

    @override
    def __str__(self) -> str:
        return namespace_label(self.namespace)

    def components(self) -> Mapping[str, Coroutine[Any, Any, None]]:
        """Return the coroutines to run, by name. None of them ever returns."""
        workloads = {f"watch workloads in {self}": self.workloads.run()} if self.workloads else {}
        return {
            **workloads,
            f"watch pods in {self}": self.pods.run(),
            f"watch services in {self}": self.services.run(),
            f"list jobs in {self}": self.job_informer.run(),
        }

    def watches(self) -> list[Watch]:
        """Return the watches that the probes check."""
        return [
            Watch(PODS.qualified, self.namespace, self.pods.synced, self.pods.age),
            Watch(SERVICES.qualified, self.namespace, self.services.synced, self.services.age),
            Watch(
                TRAINING_JOBS.qualified,
                self.namespace,
                self.job_informer.synced,
                self.job_informer.age,
                quiet_seconds=self.job_informer.relist_seconds,
            ),
        ]

    async def synced(self) -> None:
        """Wait until everything has been listed once. A decision on half a cache would treat the other half as deleted."""
        for watch in self.watches():
            await watch.synced.wait()

    async def open(self) -> None:
        """List everything once more, queue all jobs, and from now on queue each job that changes.

        A warm cache may lack the last writes of the previous leader. The first list of a cold one may come from a
        server that is behind. A pod that is missing from it would be treated as deleted.
        """
        await self.synced()
        await asyncio.gather(self.list_jobs(), _retry(self.pods.refresh), _retry(self.services.refresh))
        await self._list_workloads()
        self.opened = True
        _LOG.info(f"managing TrainingJobs in {self} jobs={len(self.cache.jobs)} pods={len(self.cache.pods)}")
        for uid in {*self.cache.jobs.keys(), *self.cache.workloads.keys()}:
            self._queue.add(uid)

    async def list_jobs(self) -> None:
        """List the jobs, with retries. No other means finds jobs that were deleted during a gap in the watch."""
        await _retry(self.job_informer.relist)

    async def _list_workloads(self) -> None:
        """List the Workloads once more. Without Kueue's API nothing waits for them: other jobs need none."""
        if self.workloads is None or not self.workloads.synced.is_set():
            return
        try:
            await self.workloads.refresh()
        except ApiError as error:
            _LOG.warning(f"cannot list workloads, and uses what was last seen: {error}")

    def _queue_now(self, uid: str) -> None:
        if self.opened:
            self._queue.add(uid)

    def _queue_soon(self, uid: str) -> None:
        if self.opened:
            pods = self.cache.pods.count(uid)
            self._queue.add_after(uid, max(POD_BATCH_SECONDS, pods * POD_BATCH_SECONDS_PER_POD))


def _workloads(
    session: Session, namespace: str | None, cache: Cache, on_change: Callable[[str], None]
) -> Reflector[WorkloadView, str]:
    """Return the watch on the Workloads of jobs. The probes leave it out: Kueue may be installed later."""
    made = Reflector(
        session,
        WORKLOADS,
        workload_record,
        cache.workloads,
        on_change,
        label_selector=LABEL_JOB_UID,
        namespace=namespace,
    )
    if cache.workloads_listed is not None:
        made.synced = cache.workloads_listed
    return made


def dispatch_to(scopes: Sequence[WatchScope]) -> EventHandler:
    """Return the handler of kopf's events that gives each to the scope of its namespace."""
    informers = {scope.namespace: scope.job_informer for scope in scopes}

    def dispatch(kind: str | None, raw: Mapping[str, Any]) -> None:
        informers[None if None in informers else raw["metadata"]["namespace"]].on_event(kind, raw)

    return dispatch


async def _retry(call: Callable[[], Awaitable[None]]) -> None:
    """Repeat the call until it succeeds."""
    delays = Backoff(cap=5.0)
    failures = 0
    while True:
        try:
            return await call()
        except ApiError as error:
            failures += 1
            if failures == 1:
                _LOG.warning(f"retrying a failed list: {error}")
            await asyncio.sleep(delays(failures))
