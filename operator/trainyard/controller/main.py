"""The process: puts the parts together, runs them, and goes when one of them does."""

import asyncio
import logging
import sys
from contextlib import AsyncExitStack
from datetime import UTC, datetime

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from pydantic import ValidationError

from trainyard.api.constants import CONTROLLER_NAME
from trainyard.controller import logs, shell
from trainyard.controller.caches import Caches, reflectors
from trainyard.controller.execute import Executor
from trainyard.controller.feed import JobFeed
from trainyard.controller.health import Health, Watch
from trainyard.controller.metrics import CacheMetrics, JobMetrics
from trainyard.controller.reconcile import Reconciler
from trainyard.controller.server import serve
from trainyard.controller.settings import Settings
from trainyard.engine.loop import ReconcileLoop
from trainyard.engine.metrics import EngineMetrics
from trainyard.engine.queue import WorkQueue
from trainyard.engine.tracker import WriteTracker
from trainyard.kube.apply import Writer
from trainyard.kube.events import EventRecorder
from trainyard.kube.login import LoginError, connect
from trainyard.kube.session import Session

_LOG = logging.getLogger(__name__)


async def run(settings: Settings, session: Session, metrics: EngineMetrics, registry: CollectorRegistry) -> None:
    """Run the operator until it is told to stop. Raises what a part of it died of."""
    caches = Caches.empty()
    queue: WorkQueue[str] = WorkQueue(observer=metrics.observer)
    pods, services = reflectors(session, caches, queue.add)
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
        now=lambda: datetime.now(UTC).replace(microsecond=0),
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

    async def reconcile_when_synced() -> None:
        # A decision on half a cache would take the other half for deleted.
        for watch in watches.values():
            await watch.synced.wait()
        _LOG.info(f"watching {len(caches.jobs)} TrainingJobs and {len(caches.pods)} pods")
        await loop.run()

    stop = asyncio.Event()
    async with AsyncExitStack() as stack:
        port = await stack.enter_async_context(serve(settings.http_host, settings.http_port, registry, health))
        _LOG.info(f"serving /metrics, /healthz and /readyz on port {port}")
        # Made before kopf starts: on its way out kopf cancels every task that is younger than itself.
        parts = [
            asyncio.create_task(part, name=name)
            for name, part in {
                "watch pods": pods.run(),
                "watch services": services.run(),
                "list jobs": feed.run(),
                "reconcile": reconcile_when_synced(),
            }.items()
        ]
        parts.append(asyncio.create_task(shell.run(session.endpoint, feed.heard, stop), name="kopf"))
        try:
            ended, _ = await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stop.set()
            for part in parts:
                part.cancel()
            await asyncio.gather(*parts, return_exceptions=True)
            await session.close()
    for part in ended:
        # kopf ends of itself, at a signal; nothing else may.
        part.result()


def main() -> int:
    """The console script. Returns the exit code."""
    try:
        settings = Settings()
        logs.configure(settings.log_level)
        registry = CollectorRegistry()
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=registry)
        metrics = EngineMetrics(registry, "trainingjob")
        session = connect(settings.context, on_request=metrics.on_request)
    except ValidationError as error:
        for problem in error.errors():
            name = "_".join(str(part) for part in problem["loc"]).upper()
            sys.stderr.write(f"trainyard-operator: TRAINYARD_{name}: {problem['msg']}\n")
        return 2
    except LoginError as error:
        sys.stderr.write(f"trainyard-operator: {error}\n")
        return 2
    try:
        asyncio.run(run(settings, session, metrics, registry))
    except Exception:  # noqa: BLE001 - the last place where it can be told in the log's own form
        _LOG.exception("the operator ends because a part of it died")
        return 1
    _LOG.info("the operator ends as it was told to")
    return 0


if __name__ == "__main__":
    sys.exit(main())
