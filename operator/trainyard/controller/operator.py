"""The operator: its parts put together, and run until it is told to stop or one of them dies."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime

from prometheus_client import CollectorRegistry

from trainyard.api.constants import CONTROLLER_NAME
from trainyard.controller import shell
from trainyard.controller.caches import Caches, reflectors
from trainyard.controller.execute import Executor
from trainyard.controller.feed import JobFeed
from trainyard.controller.health import Health, Watch
from trainyard.controller.metrics import CacheMetrics, JobMetrics
from trainyard.controller.pace import StatusPace
from trainyard.controller.reconcile import Reconciler
from trainyard.controller.resources import ServiceRecord
from trainyard.controller.server import serve
from trainyard.controller.settings import Settings
from trainyard.domain.model import PodView
from trainyard.engine.loop import ReconcileLoop
from trainyard.engine.metrics import EngineMetrics
from trainyard.engine.queue import WorkQueue
from trainyard.engine.tracker import WriteTracker
from trainyard.kube.apply import Writer
from trainyard.kube.events import EventRecorder
from trainyard.kube.reflector import Reflector
from trainyard.kube.session import Session

_LOG = logging.getLogger(__name__)

SETTLE_SECONDS = 0.05
"""What happens to a job's pods within so short a time is looked at together: five hundred that start make ten passes, not a thousand."""


def utc_now() -> datetime:
    """The time, in whole seconds as it is stored."""
    return datetime.now(UTC).replace(microsecond=0)


def _say_port(port: int) -> None:
    _LOG.info(f"serving /metrics, /healthz and /readyz on port {port}")


@dataclass(frozen=True, slots=True)
class Operator:
    """The parts. Made inside a running event loop."""

    settings: Settings
    session: Session
    registry: CollectorRegistry
    caches: Caches
    feed: JobFeed
    pods: Reflector[PodView, str]
    services: Reflector[ServiceRecord, str]
    reconciler: Reconciler
    loop: ReconcileLoop[str]
    health: Health

    @classmethod
    def assemble(
        cls,
        settings: Settings,
        session: Session,
        metrics: EngineMetrics,
        registry: CollectorRegistry,
        now: Callable[[], datetime] = utc_now,
    ) -> "Operator":
        """Make all parts; nothing runs yet."""
        caches = Caches.empty()
        queue: WorkQueue[str] = WorkQueue(observer=metrics.observer)
        pods, services = reflectors(session, caches, lambda uid: queue.add_after(uid, SETTLE_SECONDS))
        feed = JobFeed(session, caches, queue.add, settings.relist_seconds)
        tracker: WriteTracker[str] = WriteTracker()
        writer = Writer(session)
        reconciler = Reconciler(
            caches=caches,
            executor=Executor(writer, tracker),
            writer=writer,
            tracker=tracker,
            events=EventRecorder(session, CONTROLLER_NAME, settings.instance),
            metrics=JobMetrics(registry),
            pace=StatusPace(time.monotonic),
            now=now,
        )
        loop = ReconcileLoop(queue, reconciler.reconcile, workers=settings.workers, observer=metrics.observer)
        metrics.watch(queue, loop)
        CacheMetrics(caches, registry)
        watches = {
            "pods": Watch(pods.synced, pods.age),
            "services": Watch(services.synced, services.age),
            "trainingjobs": Watch(feed.synced, feed.age),
        }
        health = Health(watches, queue.longest_work, settings.stale_seconds, registry)
        return cls(settings, session, registry, caches, feed, pods, services, reconciler, loop, health)

    async def run(self, stop: asyncio.Event, listening: Callable[[int], None] = _say_port) -> None:
        """Run until `stop` is set or a signal comes; `listening` is told the HTTP port. Raises what a part died of."""
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self.session.close)
            port = await stack.enter_async_context(
                serve(self.settings.http_host, self.settings.http_port, self.registry, self.health)
            )
            listening(port)
            await self._run_parts(stop)

    async def _run_parts(self, stop: asyncio.Event) -> None:
        leaving = asyncio.Event()
        parts = {
            "watch pods": self.pods.run(),
            "watch services": self.services.run(),
            "list jobs": self.feed.run(),
            "reconcile": self._reconcile(self.health.watches),
            "write events": self.reconciler.events.run(),
            "until kopf leaves": leaving.wait(),
        }
        tasks = [asyncio.create_task(part, name=name) for name, part in parts.items()]
        shell_task = asyncio.create_task(
            shell.run(self.session.endpoint, self.feed.heard, self.settings.instance, stop, leaving), name="kopf"
        )
        try:
            ended, _ = await asyncio.wait([*tasks, shell_task], return_when=asyncio.FIRST_COMPLETED)
        finally:
            stop.set()
            # kopf too: it has nothing to finish, and would wait five seconds for every task younger than itself.
            for task in (*tasks, shell_task):
                task.cancel()
            await asyncio.gather(*tasks, shell_task, return_exceptions=True)
        for task in ended:
            task.result()

    async def _reconcile(self, watches: Mapping[str, Watch]) -> None:
        # A decision on half a cache would take the other half for deleted.
        for watch in watches.values():
            await watch.synced.wait()
        _LOG.info(f"watching {len(self.caches.jobs)} TrainingJobs and {len(self.caches.pods)} pods")
        await self.loop.run()
