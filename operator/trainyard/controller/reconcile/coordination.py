"""The coordinator, joined to what the operator knows and to what it does."""

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
from trainyard.coordinator.server import CoordinatorServer
from trainyard.coordinator.tokens import KEYS_MEDIA_TYPES, PodIdentity, TokenVerifier
from trainyard.domain.state.snapshot import JobView, PodView
from trainyard.engine.queue import WorkQueue
from trainyard.frameworks.coordinator_endpoint import CoordinatorEndpoint
from trainyard.kube.session import Session


def coordinator(
    settings: Settings,
    session: Session,
    caches: Caches,
    queue: WorkQueue[str],
    registry: CollectorRegistry,
    leading: Callable[[], bool],
    acts: Callable[[str], bool],
) -> CoordinatorServer | None:
    """The coordinator, where the settings say how workers reach it. Raises CertificateError.

    `acts`: whether all jobs of a namespace have been listed since this process leads, and are acted upon.
    """
    if settings.coordinator_url is None:
        return None

    async def fetch(path: str) -> Mapping[str, Any]:
        return await session.request("GET", path, timeout=10.0, accept=KEYS_MEDIA_TYPES)

    def find(sender: PodIdentity) -> tuple[PodView, JobView] | None:
        if not acts(sender.namespace):
            # What an agent says asks for a pass, and is answered by the status: both from caches that may be behind.
            raise RefusedError(RejectionReason.NOT_LEADING, "this process has only begun to lead; ask again")
        return _find(caches, sender)

    # Not in whole seconds: of two failures in one second the first is the cause.
    clock = session.clock
    progress_store = ProgressStore(find=find, on_change=queue.add_after, now=clock.now)
    agent_registry = AgentRegistry(now=clock.now, on_change=queue.add_after)
    heard, called, workers, agents = families(registry)
    workers.set_function(lambda: progress_store.workers)
    agents.set_function(lambda: agent_registry.connected)
    return CoordinatorServer(
        verifier=TokenVerifier(fetch, now=lambda: clock.now().timestamp()),
        progress_store=progress_store,
        agent_registry=agent_registry,
        certificate=Certificate(settings.coordinator_tls),
        leading=leading,
        report_counter=heard,
        sync_counter=called,
    )


def families(registry: CollectorRegistry) -> tuple[Counter, Counter, Gauge, Gauge]:
    """The metrics: reports and calls by their result, the workers that report, and the agents that are there."""
    heard = Counter(
        "trainyard_agent_reports", "Reports of agents, by what became of them", ["result"], registry=registry
    )
    called = Counter(
        "trainyard_agent_calls",
        "Calls of agents that wait for a word, by what became of them",
        ["result"],
        registry=registry,
    )
    for why in RejectionReason:
        heard.labels(why)
        called.labels(why)
    workers = Gauge("trainyard_reporting_workers", "Workers whose agents have told how far they are", registry=registry)
    agents = Gauge("trainyard_connected_agents", "Agents that wait for a word of this process", registry=registry)
    return heard, called, workers, agents


def contact(settings: Settings, made: CoordinatorServer | None) -> CoordinatorEndpoint | None:
    """What a worker that is made now is told."""
    if made is None or settings.coordinator_url is None:
        return None
    return CoordinatorEndpoint(settings.coordinator_url, made.certificate.authority)


@asynccontextmanager
async def serving(settings: Settings, made: CoordinatorServer | None) -> AsyncIterator[int | None]:
    """Serve while inside. Yields the port, where there is a coordinator. Raises ListenError."""
    port: int | None = None
    async with AsyncExitStack() as stack:
        if made is not None:
            host, wished = settings.coordinator_host, settings.coordinator_port
            try:
                port = await stack.enter_async_context(made.serve(host, wished))
            except (OSError, UnicodeError) as error:
                raise ListenError(
                    f"cannot listen on {host}, port {wished}: {error}; "
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
