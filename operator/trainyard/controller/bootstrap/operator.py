"""The operator: its parts put together, and run until it is told to stop or one of them dies."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from typing import Any

from prometheus_client import CollectorRegistry, Counter

from trainyard.api.constants import CONTROLLER_NAME
from trainyard.controller.bootstrap.election import ElectionMetrics, elector, tell_of_leader
from trainyard.controller.bootstrap.health import Health
from trainyard.controller.bootstrap.http_server import serve
from trainyard.controller.bootstrap.pod_lock import Seat, take_seat
from trainyard.controller.bootstrap.settings import Settings
from trainyard.controller.kopf_adapter import shell
from trainyard.controller.kopf_adapter.watch_guard import guard
from trainyard.controller.metrics.collector import CacheMetrics, JobMetrics, tell_of_clock
from trainyard.controller.reconcile.caches import Caches
from trainyard.controller.reconcile.container_restarts import ContainerRestarts
from trainyard.controller.reconcile.coordination import contact, coordinator, serving
from trainyard.controller.reconcile.executor import Executor
from trainyard.controller.reconcile.reconciler import Reconciler
from trainyard.controller.reconcile.resources import TRAINING_JOBS
from trainyard.controller.reconcile.scope import Scope
from trainyard.controller.reconcile.status_pace import StatusPace
from trainyard.coordinator.server import CoordinatorServer
from trainyard.engine.leader import LeaderElector, NotLeadingError
from trainyard.engine.loop import ReconcileLoop
from trainyard.engine.queue import WorkQueue
from trainyard.engine.queue_metrics import EngineMetrics
from trainyard.engine.tracker import WriteTracker
from trainyard.frameworks.agent_wrapper import AgentImage
from trainyard.kube.apply import Writer
from trainyard.kube.events import EventRecorder
from trainyard.kube.permissions import PermissionTracker
from trainyard.kube.session import Session

_LOG = logging.getLogger(__name__)

LAST_EVENTS_SECONDS = 1.0
"""How long a process that is told to stop goes on to write the events that wait."""
LAST_WORDS_SECONDS = 4.0
"""How long what is under way at the end may take: less than a leader's right to write lasts without a renewal."""


class KopfEndedError(Exception):
    """kopf ends only of what it cannot go on after: the CRD is gone, say."""


def _say_port(port: int) -> None:
    _LOG.info(f"serving /metrics, /healthz and /readyz on port {port}")


@dataclass(frozen=True, slots=True)
class Operator:
    """The parts. Made inside a running event loop."""

    settings: Settings
    session: Session
    registry: CollectorRegistry
    caches: Caches
    scopes: Sequence[Scope]
    reconciler: Reconciler
    loop: ReconcileLoop[str]
    health: Health
    seat: Seat
    elector: LeaderElector | None
    """None: there is no election, and this process is the only one."""
    coordinator: CoordinatorServer | None
    """None: the agents of workers have nobody to talk to."""
    _listings: set[asyncio.Task[None]] = field(default_factory=set, init=False)

    @classmethod
    def assemble(
        cls,
        settings: Settings,
        session: Session,
        metrics: EngineMetrics,
        registry: CollectorRegistry,
    ) -> "Operator":
        """Make all parts; nothing runs yet."""
        _count(session.permissions, registry)
        seat = take_seat(settings.instance, settings.pod_uid if settings.leader_election else None)
        chosen = elector(settings, session, seat) if settings.leader_election else None
        if chosen is not None:
            session.permit = chosen.permit
            ElectionMetrics(chosen, registry)
        caches = Caches.empty(settings.namespaces)
        queue: WorkQueue[str] = WorkQueue(observer=metrics.observer)
        scopes = [
            Scope(session, namespace, cache, queue, settings.relist_seconds)
            for namespace, cache in caches.by_namespace.items()
        ]
        tracker: WriteTracker[str] = WriteTracker()
        writer = Writer(session)
        leading = (lambda: chosen.leading) if chosen is not None else lambda: True

        def acts(namespace: str) -> bool:
            return all(scope.opened for scope in scopes if scope.namespace in {None, namespace})

        coordinates = coordinator(settings, session, caches, queue, registry, leading, acts)
        pace = StatusPace(time.monotonic)
        restarts = ContainerRestarts(writer)
        reconciler = Reconciler(
            caches=caches,
            executor=Executor(
                writer,
                tracker,
                caches,
                restarts,
                _agent(settings),
                lambda: contact(settings, coordinates),
                _peers(settings),
            ),
            writer=writer,
            tracker=tracker,
            events=EventRecorder(session, CONTROLLER_NAME, settings.instance, busy=lambda: pace.busy),
            metrics=JobMetrics(registry),
            pace=pace,
            now=session.clock.whole_second,
            progress_store=coordinates.progress_store if coordinates else None,
            agent_registry=coordinates.agent_registry if coordinates else None,
        )
        loop = ReconcileLoop(
            queue, _while_leading(reconciler.reconcile), workers=settings.workers, observer=metrics.observer
        )
        metrics.watch(queue, loop)
        CacheMetrics(caches, registry, acting=leading)
        tell_of_clock(session.clock, registry)
        watches = [watch for scope in scopes for watch in scope.watches()]
        standing = chosen.describe if chosen is not None else str
        health = Health(watches, queue.longest_work, settings.stale_seconds, session.permissions, standing, registry)
        return cls(settings, session, registry, caches, scopes, reconciler, loop, health, seat, chosen, coordinates)

    async def run(self, stop: asyncio.Event, listening: Callable[[int], None] = _say_port) -> None:
        """Run until `stop` is set or a signal comes; `listening` is told the HTTP port. Raises what a part died of."""
        async with AsyncExitStack() as stack:
            stack.callback(self.seat.leave)
            stack.push_async_callback(self.session.close)
            if self.elector is not None:
                stack.push_async_callback(self.elector.client.session.close)
            port = await stack.enter_async_context(
                serve(self.settings.http_host, self.settings.http_port, self.registry, self.health)
            )
            if (heard := await stack.enter_async_context(serving(self.settings, self.coordinator))) is not None:
                _LOG.info(f"the agents of workers are heard on port {heard}")
            listening(port)
            await self._run_parts(stop)

    async def _run_parts(self, stop: asyncio.Event) -> None:
        leaving, elected = asyncio.Event(), asyncio.Event()
        parts = {
            **{name: part for scope in self.scopes for name, part in scope.parts().items()},
            "act": self._act(elected),
            "elect": self._elect(elected),
            "kopf": self._shell(stop, leaving),
            "until it is told to stop": stop.wait(),
            "until kopf leaves": _outlive(leaving),
        }
        tasks = [asyncio.create_task(part, name=name) for name, part in parts.items()]
        try:
            ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if not any(task.exception() for task in ended):
                await self._finish()
        finally:
            unanswered = self.session.writes_in_flight
            stop.set()
            # kopf too: it has nothing to finish, and would wait five seconds for every task younger than itself.
            for task in (*tasks, *self._listings):
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if unanswered:
                _LOG.warning(
                    f"{unanswered} writes are not answered and may yet be carried out: the lease is left to run out"
                )
            elif self.elector is not None:
                await self.elector.release()
        for task in ended:
            task.result()

    async def _elect(self, elected: asyncio.Event) -> None:
        # Only who has heard all of something can do something with the lease.
        await self._some_scope()
        if self.elector is not None:
            await self.elector.acquire()
            tell_of_leader(self.reconciler.events, self.elector)
        elected.set()
        if self.elector is not None:
            await self.elector.keep()
        await asyncio.Event().wait()

    async def _act(self, elected: asyncio.Event) -> None:
        await elected.wait()
        try:
            async with asyncio.TaskGroup() as group:
                for scope in self.scopes:
                    group.create_task(scope.open())
                group.create_task(self._tell())
                group.create_task(self.loop.run())
        except ExceptionGroup as ends:
            # The first says it all, and may be one that the process has a sentence for.
            raise ends.exceptions[0] from ends

    async def _tell(self) -> None:
        try:
            await self.reconciler.events.run()
        except NotLeadingError:
            _LOG.debug("the events that are still to be written are another's")

    async def _shell(self, stop: asyncio.Event, leaving: asyncio.Event) -> None:
        # kopf asks once which kinds there are. A list that was answered means that the CRD is installed.
        await self._some_scope()
        heard = {scope.namespace: scope.feed.heard for scope in self.scopes}

        def hear(kind: str | None, raw: Mapping[str, Any]) -> None:
            heard[None if None in heard else raw["metadata"]["namespace"]](kind, raw)

        await shell.run(
            self.session.endpoint,
            hear,
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

    async def _some_scope(self) -> None:
        """Wait until one scope has been listed."""
        waits = [asyncio.create_task(scope.synced()) for scope in self.scopes]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def _finish(self) -> None:
        """End in good order: tell what is still to be told, begin no more writes, and wait for the answers to those under way."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_EVENTS_SECONDS):
                await self.reconciler.events.drain()
        if self.elector is not None:
            self.elector.resign()
        end = time.monotonic() + LAST_WORDS_SECONDS
        while self.session.writes_in_flight and time.monotonic() < end:  # noqa: ASYNC110 - once in a process's life
            await asyncio.sleep(0.01)


async def _outlive(leaving: asyncio.Event) -> None:
    await leaving.wait()
    # Before it is quite gone: on its way it waits for, and then cancels, every task that is younger than itself.
    raise KopfEndedError("kopf has ended, and with it the watch on TrainingJobs; what it has logged says why")


def _while_leading(
    reconcile: Callable[[str], Awaitable[float | None]],
) -> Callable[[str], Awaitable[float | None]]:
    """A pass that is told that it may not write any more ends without a word: the process is about to."""

    async def one(uid: str) -> float | None:
        try:
            return await reconcile(uid)
        except NotLeadingError:
            return None

    return one


def _peers(settings: Settings) -> list[dict[str, Any]] | None:
    if not settings.isolate_jobs:
        return None
    return [{**peer} for peer in settings.job_peers]


def _agent(settings: Settings) -> AgentImage | None:
    return AgentImage(settings.agent_image, settings.agent_image_volume) if settings.agent_image else None


def _count(permissions: PermissionTracker, registry: CollectorRegistry) -> None:
    refused = Counter(
        "trainyard_forbidden_requests",
        "Requests refused because the operator's account lacks a right",
        ["verb", "resource"],
        registry=registry,
    )
    permissions.on_refused = lambda right: refused.labels(right.verb, right.resource).inc()
