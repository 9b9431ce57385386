"""Connect the coordinator to the caches, the queue and the metrics."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge

from trainyard.controller.bootstrap.http_server import ListenError
from trainyard.controller.bootstrap.settings import Settings
from trainyard.controller.reconcile.caches import Caches
from trainyard.coordinator.agent_registry import AgentRegistry
from trainyard.coordinator.certificate import Certificate
from trainyard.coordinator.progress_store import ProgressStore
from trainyard.coordinator.rejections import RefusedError, RejectionReason
from trainyard.coordinator.request_limits import WorkerIndex
from trainyard.coordinator.server import CoordinatorServer
from trainyard.coordinator.tokens import KEYS_MEDIA_TYPES, PodIdentity, TokenVerifier
from trainyard.domain.state.snapshot import JobView
from trainyard.domain.state.worker_views import PodView
from trainyard.engine.queue import WorkQueue
from trainyard.frameworks.coordinator_endpoint import CoordinatorEndpoint
from trainyard.kube.session import Session


def create_coordinator(
    settings: Settings,
    session: Session,
    caches: Caches,
    queue: WorkQueue[str],
    registry: CollectorRegistry,
    leading: Callable[[], bool],
    is_reconciled: Callable[[str], bool],
) -> CoordinatorServer | None:
    """Return the coordinator, without a certificate so far, if the settings say how workers reach it.

    `is_reconciled`: whether this process leads and has listed all jobs of a namespace.
    """
    if settings.coordinator_url is None:
        return None

    async def fetch(path: str) -> Mapping[str, Any]:
        return await session.request("GET", path, timeout=10.0, accept=KEYS_MEDIA_TYPES)

    def find(sender: PodIdentity) -> tuple[PodView, JobView] | None:
        if not is_reconciled(sender.namespace):
            # A report triggers a reconcile, and the status answers it: both read caches that may be behind.
            raise RefusedError(RejectionReason.NOT_LEADING, "this process has only just become the leader; retry")
        return _find(caches, sender)

    # Not in whole seconds: of two failures in one second the first is the cause.
    clock = session.clock
    progress_store = ProgressStore(find=find, on_change=queue.add_after, now=clock.now)
    agent_registry = AgentRegistry(now=clock.now, on_change=queue.add_after)
    reports, sync_requests, reporting, connected = register_metrics(registry)
    reporting.set_function(lambda: progress_store.workers)
    connected.set_function(lambda: agent_registry.connected)
    return CoordinatorServer(
        verifier=TokenVerifier(fetch, now=lambda: clock.now().timestamp()),
        progress_store=progress_store,
        agent_registry=agent_registry,
        certificate=Certificate(),
        leading=leading,
        report_counter=reports,
        sync_counter=sync_requests,
        workers=WorkerIndex(caches.pods),
        pods_of=lambda job: caches.of(job.namespace).pods_of(job),
    )


def register_metrics(registry: CollectorRegistry) -> tuple[Counter, Counter, Gauge, Gauge]:
    """Register and return the metrics: reports and sync requests by result, reporting workers, connected agents."""
    reports = Counter("trainyard_agent_reports", "Progress reports of agents by result", ["result"], registry=registry)
    sync_requests = Counter(
        "trainyard_agent_sync_requests",
        "Long-poll requests of agents by result",
        ["result"],
        registry=registry,
    )
    for why in RejectionReason:
        reports.labels(why)
        sync_requests.labels(why)
    reporting = Gauge("trainyard_reporting_workers", "Workers whose agents have reported progress", registry=registry)
    connected = Gauge(
        "trainyard_connected_agents", "Agents with an open long-poll request to this process", registry=registry
    )
    return reports, sync_requests, reporting, connected


def coordinator_endpoint(settings: Settings, coordinator: CoordinatorServer | None) -> CoordinatorEndpoint | None:
    """Return the endpoint that new workers connect to; None without a coordinator."""
    if coordinator is None or settings.coordinator_url is None:
        return None
    return CoordinatorEndpoint(settings.coordinator_url, coordinator.certificate.authority)


@asynccontextmanager
async def serving(settings: Settings, coordinator: CoordinatorServer | None) -> AsyncIterator[int | None]:
    """Serve inside the context. Yields the port; None without a coordinator. Raises ListenError."""
    port: int | None = None
    async with AsyncExitStack() as stack:
        if coordinator is not None:
            host, requested_port = settings.coordinator_host, settings.coordinator_port
            try:
                port = await stack.enter_async_context(coordinator.serve(host, requested_port))
            except (OSError, UnicodeError) as error:
                raise ListenError(
                    f"cannot listen on {host}, port {requested_port}: {error}; "
                    "set TRAINYARD_COORDINATOR_HOST and TRAINYARD_COORDINATOR_PORT"
                ) from error
        yield port


def _find(caches: Caches, sender: PodIdentity) -> tuple[PodView, JobView] | None:
    if sender.namespace not in caches.by_namespace and None not in caches.by_namespace:
        return None
    cache = caches.of(sender.namespace)
    pod = cache.pods.get(sender.uid)
    if pod is None or pod.namespace != sender.namespace:
        return None
    record = cache.jobs.get(pod.job_uid)
    if record is None or record.namespace != pod.namespace or (job := record.view) is None:
        return None
    return pod, job
