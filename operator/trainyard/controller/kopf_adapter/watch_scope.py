"""Watch one namespace, or the whole cluster, and queue its jobs once this process leads. Decides nothing about jobs."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any

from typing_extensions import override

from trainyard.api.constants import LABEL_JOB_UID
from trainyard.controller.bootstrap.health import Watch
from trainyard.controller.kopf_adapter.job_informer import JobInformer
from trainyard.controller.reconcile.caches import Cache
from trainyard.controller.reconcile.resources import TRAINING_JOBS, pod_record, service_record
from trainyard.engine.queue import WorkQueue
from trainyard.kube.backoff import Backoff
from trainyard.kube.errors import ApiError
from trainyard.kube.reflector import Reflector
from trainyard.kube.resource import PODS, SERVICES, namespace_label
from trainyard.kube.session import Session

_LOG = logging.getLogger(__name__)

POD_BATCH_SECONDS = 0.05
"""Changes to a job's pods within this time share one reconcile: five hundred starting pods cause ten, not a thousand."""
POD_BATCH_SECONDS_PER_POD = 0.0001
"""Added for each pod of the job. A reconcile reads all of them, so a large job is reconciled less often."""


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
            session, PODS, pod_record, cache.pods, self._queue_soon, label_selector=LABEL_JOB_UID, namespace=namespace
        )
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
        return {
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
        self.opened = True
        _LOG.info(f"managing TrainingJobs in {self} jobs={len(self.cache.jobs)} pods={len(self.cache.pods)}")
        for uid in self.cache.jobs.keys():  # noqa: SIM118 - a store is no dict
            self._queue.add(uid)

    async def list_jobs(self) -> None:
        """List the jobs, with retries. No other means finds jobs that were deleted during a gap in the watch."""
        await _retry(self.job_informer.relist)

    def _queue_now(self, uid: str) -> None:
        if self.opened:
            self._queue.add(uid)

    def _queue_soon(self, uid: str) -> None:
        if self.opened:
            pods = self.cache.pods.count(uid)
            self._queue.add_after(uid, max(POD_BATCH_SECONDS, pods * POD_BATCH_SECONDS_PER_POD))


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
