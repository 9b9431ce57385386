"""Assemble the operator and run it until it is stopped or a component fails."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from typing import Any

from prometheus_client import CollectorRegistry, Counter

from trainyard.api.constants import CONTROLLER_NAME
from trainyard.controller.bootstrap.certificate_keeper import CertificateKeeper
from trainyard.controller.bootstrap.certificate_source import CertificateSource, create_certificate_source
from trainyard.controller.bootstrap.election import ElectionMetrics, create_elector, record_leader_event
from trainyard.controller.bootstrap.health import Health
from trainyard.controller.bootstrap.http_server import serve
from trainyard.controller.bootstrap.pod_lock import PodLock, acquire_pod_lock
from trainyard.controller.bootstrap.settings import Settings
from trainyard.controller.kopf_adapter import shell
from trainyard.controller.kopf_adapter.watch_guard import guard
from trainyard.controller.kopf_adapter.watch_scope import WatchScope, dispatch_to
from trainyard.controller.metrics.collector import CacheMetrics, JobMetrics, register_clock_offset
from trainyard.controller.reconcile.caches import Caches
from trainyard.controller.reconcile.container_restarts import ContainerRestartSupport
from trainyard.controller.reconcile.coordination import coordinator_endpoint, create_coordinator, serving
from trainyard.controller.reconcile.executor import Executor
from trainyard.controller.reconcile.pod_events import PodEvents
from trainyard.controller.reconcile.reconciler import Reconciler
from trainyard.controller.reconcile.resources import TRAINING_JOBS
from trainyard.controller.reconcile.status_pace import StatusPace
from trainyard.coordinator.server import CoordinatorServer
from trainyard.domain.state.accelerators import ACCELERATORS
from trainyard.engine.leader import LeaderElector, NotLeadingError
from trainyard.engine.loop import ReconcileLoop
from trainyard.engine.queue import WorkQueue
from trainyard.engine.queue_metrics import EngineMetrics
from trainyard.engine.tracker import WriteTracker
from trainyard.frameworks.agent_wrapper import AgentImage
from trainyard.frameworks.pod_metadata import PodMetadata
from trainyard.kube.apply import Writer
from trainyard.kube.events import EventRecorder
from trainyard.kube.permissions import PermissionTracker
from trainyard.kube.session import Session

_LOG = logging.getLogger(__name__)

EVENT_DRAIN_SECONDS = 1.0
"""How long a stopping process continues to write queued events."""
WRITE_DRAIN_SECONDS = 4.0
"""How long a stopping process waits for requests in flight. Shorter than a leader may write without renewing its lease."""


class KopfStoppedError(Exception):
    """kopf stopped. It does so only after an error that it cannot survive, for example a deleted CRD."""


def _log_port(port: int) -> None:
    _LOG.info(f"serving /metrics, /healthz and /readyz port={port}")


@dataclass(frozen=True, slots=True)
class Operator:
    """The components. Created inside a running event loop."""

    settings: Settings
    session: Session
    registry: CollectorRegistry
    caches: Caches
    scopes: Sequence[WatchScope]
    reconciler: Reconciler
    loop: ReconcileLoop[str]
    health: Health
    pod_lock: PodLock
    elector: LeaderElector | None
    """None: leader election is off, and this process is the only one."""
    coordinator: CoordinatorServer | None
    """None: agents have no endpoint to connect to."""
    certificate_source: CertificateSource | None
    """None: without a coordinator."""
    _listings: set[asyncio.Task[None]] = field(default_factory=set, init=False)

    @classmethod
    def assemble(
        cls,
        settings: Settings,
        session: Session,
        metrics: EngineMetrics,
        registry: CollectorRegistry,
    ) -> "Operator":
        """Create all components; none of them runs yet. Raises CertificateError."""
        _count_forbidden_requests(session.permissions, registry)
        pod_lock = acquire_pod_lock(settings.instance, settings.pod_uid if settings.leader_election else None)
        elector = create_elector(settings, session, pod_lock) if settings.leader_election else None
        if elector is not None:
            session.permit = elector.permit
            ElectionMetrics(elector, registry)
        caches = Caches.empty(settings.namespaces, {**ACCELERATORS, **settings.accelerators})
        queue: WorkQueue[str] = WorkQueue(observer=metrics.observer)
        scopes = [
            WatchScope(session, namespace, cache, queue, settings.relist_seconds)
            for namespace, cache in caches.by_namespace.items()
        ]
        tracker: WriteTracker[str] = WriteTracker()
        writer = Writer(session)
        leading = (lambda: elector.leading) if elector is not None else lambda: True

        def is_reconciled(namespace: str) -> bool:
            return all(scope.opened for scope in scopes if scope.namespace in {None, namespace})

        coordinator = create_coordinator(settings, session, caches, queue, registry, leading, is_reconciled)
        certificate_source = (
            create_certificate_source(settings, session, coordinator.certificate, registry) if coordinator else None
        )
        pace = StatusPace(time.monotonic)
        restart_support = ContainerRestartSupport(writer)
        reconciler = Reconciler(
            caches=caches,
            executor=Executor(
                writer,
                tracker,
                caches,
                restart_support,
                _agent_source(settings),
                lambda: coordinator_endpoint(settings, coordinator),
                _job_peers(settings),
                PodMetadata().overridden(settings.worker_labels, settings.worker_annotations),
            ),
            writer=writer,
            tracker=tracker,
            events=EventRecorder(session, CONTROLLER_NAME, settings.instance, busy=lambda: pace.busy),
            metrics=JobMetrics(registry),
            pace=pace,
            now=session.clock.whole_second,
            progress_store=coordinator.progress_store if coordinator else None,
            agent_registry=coordinator.agent_registry if coordinator else None,
            pod_events=PodEvents(session, time.monotonic),
        )
        loop = ReconcileLoop(
            queue,
            _while_leading(reconciler.reconcile),
            workers=settings.concurrent_reconciles,
            observer=metrics.observer,
        )
        metrics.watch(queue, loop)
        CacheMetrics(caches, registry, leading=leading)
        register_clock_offset(session.clock, registry)
        watches = [watch for scope in scopes for watch in scope.watches()]
        leadership = elector.describe if elector is not None else str
        certificate = certificate_source.obstacle if isinstance(certificate_source, CertificateKeeper) else str
        health = Health(
            watches, queue.longest_work, settings.stale_seconds, session.permissions, leadership, certificate, registry
        )
        return cls(
            settings=settings,
            session=session,
            registry=registry,
            caches=caches,
            scopes=scopes,
            reconciler=reconciler,
            loop=loop,
            health=health,
            pod_lock=pod_lock,
            elector=elector,
            coordinator=coordinator,
            certificate_source=certificate_source,
        )

    async def run(self, stop: asyncio.Event, on_listening: Callable[[int], None] = _log_port) -> None:
        """Run until `stop` is set or a signal arrives, and call `on_listening` with the HTTP port. Raises the error of
        a failed component.
        """
        async with AsyncExitStack() as stack:
            stack.callback(self.pod_lock.release)
            stack.push_async_callback(self.session.close)
            if self.elector is not None:
                stack.push_async_callback(self.elector.client.session.close)
            if isinstance(self.certificate_source, CertificateKeeper):
                stack.push_async_callback(self.certificate_source.client.session.close)
            port = await stack.enter_async_context(
                serve(self.settings.http_host, self.settings.http_port, self.registry, self.health)
            )
            agent_port = await stack.enter_async_context(serving(self.settings, self.coordinator))
            if agent_port is not None:
                _LOG.info(f"serving agents port={agent_port}")
            on_listening(port)
            await self._run_components(stop)

    async def _run_components(self, stop: asyncio.Event) -> None:
        leaving, elected = asyncio.Event(), asyncio.Event()
        components = {
            **{name: component for scope in self.scopes for name, component in scope.components().items()},
            "reconcile": self._reconcile_jobs(elected),
            "leader election": self._elect(elected),
            "certificate": self._keep_certificate(),
            "kopf": self._run_kopf(stop, leaving),
            "wait for a stop signal": stop.wait(),
            "wait until kopf stops": _raise_when_kopf_stops(leaving),
        }
        tasks = [asyncio.create_task(component, name=name) for name, component in components.items()]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if not any(task.exception() for task in done):
                await self._shut_down()
        finally:
            in_flight = self.session.writes_in_flight
            stop.set()
            # Cancel kopf as well. It has nothing to finish, and would wait five seconds for every task younger than
            # itself.
            for task in (*tasks, *self._listings):
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if in_flight:
                _LOG.warning(
                    f"keeping the lease until it expires: writes may still be carried out in_flight={in_flight}"
                )
            elif self.elector is not None:
                await self.elector.release()
        for task in done:
            task.result()

    async def _elect(self, elected: asyncio.Event) -> None:
        # Campaign only after one cache has synced: a leader without a cache could do nothing.
        await self._wait_for_first_scope()
        # Pods get the authority when they are created: a leader without one would give them none for their lifetime.
        if self.coordinator is not None:
            await self.coordinator.certificate.loaded.wait()
        if self.elector is not None:
            await self.elector.acquire()
            record_leader_event(self.reconciler.events, self.elector)
        elected.set()
        if self.elector is not None:
            await self.elector.keep()
        await asyncio.Event().wait()

    async def _keep_certificate(self) -> None:
        if self.certificate_source is not None:
            await self.certificate_source.keep()
        await asyncio.Event().wait()

    async def _reconcile_jobs(self, elected: asyncio.Event) -> None:
        await elected.wait()
        try:
            async with asyncio.TaskGroup() as group:
                for scope in self.scopes:
                    group.create_task(scope.open())
                group.create_task(self._write_events())
                group.create_task(self.loop.run())
        except ExceptionGroup as failures:
            # The first error is the cause, and `main` may have its own message for it.
            raise failures.exceptions[0] from failures

    async def _write_events(self) -> None:
        try:
            await self.reconciler.events.run()
        except NotLeadingError:
            _LOG.debug("not writing queued events: another process leads")

    async def _run_kopf(self, stop: asyncio.Event, leaving: asyncio.Event) -> None:
        # kopf discovers resources once. An answered list shows that the CRD is installed.
        await self._wait_for_first_scope()
        await shell.run(
            self.session.endpoint,
            dispatch_to(self.scopes),
            guard=guard(self.health.permissions, self._list_jobs),
            namespaces=self.settings.namespaces,
            instance=self.settings.instance,
            stop=stop,
            leaving=leaving,
        )

    def _list_jobs(self, path: str) -> None:
        for scope in self.scopes:
            if TRAINING_JOBS.path(scope.namespace) == path:
                listing = asyncio.create_task(scope.list_jobs())
                self._listings.add(listing)
                listing.add_done_callback(self._listings.discard)

    async def _wait_for_first_scope(self) -> None:
        """Wait until one scope has synced."""
        pending = [asyncio.create_task(scope.synced()) for scope in self.scopes]
        try:
            await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in pending:
                task.cancel()

    async def _shut_down(self) -> None:
        """Shut down in order: write queued events, start no more writes, and wait for the answers to those in flight."""
        with suppress(TimeoutError):
            async with asyncio.timeout(EVENT_DRAIN_SECONDS):
                await self.reconciler.events.drain()
        if self.elector is not None:
            self.elector.resign()
        deadline = time.monotonic() + WRITE_DRAIN_SECONDS
        while self.session.writes_in_flight and time.monotonic() < deadline:  # noqa: ASYNC110 - once in a process's life
            await asyncio.sleep(0.01)


async def _raise_when_kopf_stops(leaving: asyncio.Event) -> None:
    await leaving.wait()
    # Raise before kopf has fully stopped: on its way it waits for every task younger than itself, and then cancels it.
    raise KopfStoppedError("kopf stopped, and with it the watch on TrainingJobs; its log says why")


def _while_leading(
    reconcile: Callable[[str], Awaitable[float | None]],
) -> Callable[[str], Awaitable[float | None]]:
    """Wrap `reconcile` so that a reconcile that may no longer write returns silently. The process is about to exit."""

    async def reconcile_or_stop(uid: str) -> float | None:
        try:
            return await reconcile(uid)
        except NotLeadingError:
            return None

    return reconcile_or_stop


def _job_peers(settings: Settings) -> list[dict[str, Any]] | None:
    if not settings.isolate_jobs:
        return None
    return [{**peer} for peer in settings.job_peers]


def _agent_source(settings: Settings) -> AgentImage | None:
    if not settings.agent_image:
        return None
    return AgentImage(settings.agent_image, settings.agent_image_volume, settings.agent_pull_secrets)


def _count_forbidden_requests(permissions: PermissionTracker, registry: CollectorRegistry) -> None:
    forbidden = Counter(
        "trainyard_forbidden_requests",
        "Requests refused because the operator's account lacks a permission",
        ["verb", "resource"],
        registry=registry,
    )
    permissions.on_refused = lambda permission: forbidden.labels(permission.verb, permission.resource).inc()
