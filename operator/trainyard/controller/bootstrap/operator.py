"""Run the components of the operator until it is stopped or one of them fails."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry

from trainyard.controller.bootstrap.certificate_keeper import CertificateKeeper
from trainyard.controller.bootstrap.certificate_source import CertificateSource
from trainyard.controller.bootstrap.election import record_leader_event
from trainyard.controller.bootstrap.health import Health
from trainyard.controller.bootstrap.http_server import Ports, serve
from trainyard.controller.bootstrap.pod_lock import PodLock
from trainyard.controller.bootstrap.settings import Settings
from trainyard.controller.kopf_adapter import shell
from trainyard.controller.kopf_adapter.watch_guard import guard
from trainyard.controller.kopf_adapter.watch_scope import WatchScope, dispatch_to
from trainyard.controller.reconcile.caches import Caches
from trainyard.controller.reconcile.coordination import serving
from trainyard.controller.reconcile.gang_discovery import GangDiscovery
from trainyard.controller.reconcile.node_places import NodeRecord
from trainyard.controller.reconcile.reconciler import Reconciler
from trainyard.controller.reconcile.resources import TRAINING_JOBS
from trainyard.coordinator.server import CoordinatorServer
from trainyard.engine.leader import LeaderElector, NotLeadingError
from trainyard.engine.loop import ReconcileLoop
from trainyard.kube.reflector import Reflector
from trainyard.kube.session import Session

_LOG = logging.getLogger(__name__)

EVENT_DRAIN_SECONDS = 1.0
"""How long a stopping process continues to write queued events."""
NODES_WAIT_SECONDS = 10.0
"""For which the first reconcile waits for the list of nodes, where they are read."""
WRITE_DRAIN_SECONDS = 4.0
"""How long a stopping process waits for requests in flight. Shorter than a leader may write without renewing its lease."""


class KopfStoppedError(Exception):
    """kopf stopped. It does so only after an error that it cannot survive, for example a deleted CRD."""


def _log_ports(ports: Ports) -> None:
    _LOG.info(f"serving /metrics port={ports.metrics}, and /healthz and /readyz port={ports.health}")


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
    gang_discovery: GangDiscovery
    nodes: Reflector[NodeRecord, str] | None = None
    """The watch on nodes; None: their labels are not read."""
    _listings: set[asyncio.Task[None]] = field(default_factory=set, init=False)

    async def run(self, stop: asyncio.Event, on_listening: Callable[[Ports], None] = _log_ports) -> None:
        """Run until `stop` is set or a signal arrives, and call `on_listening` with the HTTP ports. Raises the error of
        a failed component.
        """
        async with AsyncExitStack() as stack:
            stack.callback(self.pod_lock.release)
            stack.push_async_callback(self.session.close)
            if self.elector is not None:
                stack.push_async_callback(self.elector.client.session.close)
            if isinstance(self.certificate_source, CertificateKeeper):
                stack.push_async_callback(self.certificate_source.client.session.close)
            ports = await stack.enter_async_context(serve(self.settings, self.registry, self.health))
            agent_port = await stack.enter_async_context(serving(self.settings, self.coordinator))
            if agent_port is not None:
                _LOG.info(f"serving agents port={agent_port}")
            on_listening(ports)
            await self._run_components(stop)

    async def _run_components(self, stop: asyncio.Event) -> None:
        leaving, elected = asyncio.Event(), asyncio.Event()
        components = {
            **{name: component for scope in self.scopes for name, component in scope.components().items()},
            **({"watch nodes": self.nodes.run()} if self.nodes else {}),
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
        await self._wait_for_nodes()
        await self.gang_discovery.ask()
        try:
            async with asyncio.TaskGroup() as group:
                for scope in self.scopes:
                    group.create_task(scope.open())
                group.create_task(self._write_events())
                group.create_task(self.loop.run())
        except ExceptionGroup as failures:
            # The first error is the cause, and `main` may have its own message for it.
            raise failures.exceptions[0] from failures

    async def _wait_for_nodes(self) -> None:
        """Wait until the nodes are listed, or cannot be: a group that starts now would not follow its placement."""
        if self.nodes is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(self.nodes.synced.wait(), NODES_WAIT_SECONDS)

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
