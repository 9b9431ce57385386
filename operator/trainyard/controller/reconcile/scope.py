"""One namespace, or the whole cluster: its watches, and from when on its jobs are acted upon. Decides nothing about them."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any

from typing_extensions import override

from trainyard.api.constants import LABEL_JOB_UID
from trainyard.controller.bootstrap.health import Watch
from trainyard.controller.kopf_adapter.job_informer import JobFeed
from trainyard.controller.reconcile.caches import Cache
from trainyard.controller.reconcile.resources import TRAINING_JOBS, pod_record, service_record
from trainyard.engine.queue import WorkQueue
from trainyard.kube.backoff import Backoff
from trainyard.kube.errors import ApiError
from trainyard.kube.reflector import Reflector
from trainyard.kube.resource import PODS, SERVICES, namespace_label
from trainyard.kube.session import Session

_LOG = logging.getLogger(__name__)

SETTLE_SECONDS = 0.05
"""What happens to a job's pods within so short a time is looked at together: five hundred that start make ten passes, not a thousand."""
SETTLE_SECONDS_A_POD = 0.0001
"""A pass looks at all pods of its job: for a large one this time is longer, so that the passes cost no more than those of a small one."""


class Scope:
    """The watches of one namespace (None: of all), and whether what they tell is put into the queue.

    A standby's scopes are warm but closed: they know everything and ask for no pass. Opening one puts all its jobs into the queue.
    """

    def __init__(
        self, session: Session, namespace: str | None, cache: Cache, queue: WorkQueue[str], relist_seconds: float
    ) -> None:
        self.namespace = namespace
        self.cache = cache
        self._queue = queue
        self.opened = False
        """Whether its jobs are acted upon."""
        self.feed = JobFeed(session, namespace, cache.jobs, self._now, relist_seconds)
        self.pods = Reflector(
            session, PODS, pod_record, cache.pods, self._soon, label_selector=LABEL_JOB_UID, namespace=namespace
        )
        self.services = Reflector(
            session,
            SERVICES,
            service_record,
            cache.services,
            self._soon,
            label_selector=LABEL_JOB_UID,
            namespace=namespace,
        )

    @override
    def __str__(self) -> str:
        return namespace_label(self.namespace)

    def parts(self) -> Mapping[str, Coroutine[Any, Any, None]]:
        """What has to run, by name. None of it ever ends by itself."""
        return {
            f"watch pods in {self}": self.pods.run(),
            f"watch services in {self}": self.services.run(),
            f"list jobs in {self}": self.feed.run(),
        }

    def watches(self) -> list[Watch]:
        """What the probes look at."""
        return [
            Watch(PODS.qualified, self.namespace, self.pods.synced, self.pods.age),
            Watch(SERVICES.qualified, self.namespace, self.services.synced, self.services.age),
            Watch(
                TRAINING_JOBS.qualified, self.namespace, self.feed.synced, self.feed.age, rest=self.feed.relist_seconds
            ),
        ]

    async def synced(self) -> None:
        """Wait until everything has been listed once. A decision on half a cache would take the other half for deleted."""
        for watch in self.watches():
            await watch.synced.wait()

    async def open(self) -> None:
        """List everything once more, put all jobs into the queue, and from now on each that changes.

        A warm cache may be behind by what another process wrote last before it stopped leading, and the first list of a cold
        one may come from a server that is behind: a pod that it does not show yet would be taken for one that was deleted.
        """
        await self.synced()
        await asyncio.gather(self.list_jobs(), _persist(self.pods.refresh), _persist(self.services.refresh))
        self.opened = True
        _LOG.info(f"acting on {len(self.cache.jobs)} TrainingJobs and {len(self.cache.pods)} pods in {self}")
        for uid in self.cache.jobs.keys():  # noqa: SIM118 - a store is no dict
            self._queue.add(uid)

    async def list_jobs(self) -> None:
        """List the jobs as soon as that works: what was deleted while their watch had a gap is found by no other means."""
        await _persist(self.feed.relist)

    def _now(self, uid: str) -> None:
        if self.opened:
            self._queue.add(uid)

    def _soon(self, uid: str) -> None:
        if self.opened:
            pods = self.cache.pods.count(uid)
            self._queue.add_after(uid, max(SETTLE_SECONDS, pods * SETTLE_SECONDS_A_POD))


async def _persist(call: Callable[[], Awaitable[None]]) -> None:
    """Make the call until it succeeds."""
    delays = Backoff(cap=5.0)
    failures = 0
    while True:
        try:
            return await call()
        except ApiError as error:
            failures += 1
            if failures == 1:
                _LOG.warning(f"a list failed, trying again until it works: {error}")
            await asyncio.sleep(delays(failures))
