"""The HTTPS service for agents. Each rejected request gets a reason, and is counted.

`POST /v1/report`: the progress of a worker's ranks; the answer says when to report again. `POST /v1/sync`: the state of
the agent, as a long poll; the answer comes as soon as the agent's assignment changes, or after a minute.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta

from aiohttp import ClientError, web
from aiohttp.http_exceptions import HttpProcessingError
from prometheus_client import Counter

from trainyard.api.agent_protocol import (
    MAX_BODY_BYTES,
    REPORT_PATH,
    SYNC_PATH,
    AgentState,
    Refusal,
    Report,
    ReportAnswer,
    StopOrder,
    SyncAnswer,
    SyncRequest,
)
from trainyard.coordinator import reports
from trainyard.coordinator.agent_registry import AgentRegistry
from trainyard.coordinator.assignments import Assignment, assignment
from trainyard.coordinator.certificate import Certificate
from trainyard.coordinator.connection_limits import ConnectionLimits
from trainyard.coordinator.listener import Admission, AuthenticatedConnections, listen
from trainyard.coordinator.progress_store import ProgressStore
from trainyard.coordinator.rejections import STATUS, RefusedError, RejectionReason
from trainyard.coordinator.request_limits import RequestLimits, WorkerIndex
from trainyard.coordinator.tokens import PodIdentity, TokenVerifier
from trainyard.coordinator.wire_log import wire_log
from trainyard.domain.state.observed_exits import container_exit
from trainyard.domain.state.snapshot import JobView
from trainyard.domain.state.worker_views import AgentView, PodView

_LOG = logging.getLogger(__name__)

Json = dict[str, object]
Handler = Callable[[web.Request, PodIdentity, PodView, JobView], Awaitable[Json]]

FINAL_STATES = frozenset({AgentState.ENDED, AgentState.RESTARTING})
"""An agent in one of these states is answered at once: it does not wait for an assignment."""
LONG_POLL_SECONDS = 60.0
"""How long a sync request waits for a change before the agent has to ask again."""
FIRST_LONG_POLL_SECONDS = 2.0
"""The same for an agent that this process does not know yet. After its first answer an agent waits for the next
leader if this node is lost."""
BODY_TIMEOUT_SECONDS = 10.0
"""How long the body of a request may take to arrive."""
MAX_FAILURE_AGE_SECONDS = 24 * 3600.0
"""An older failure is taken for one of this age."""


@dataclass(slots=True)
class CoordinatorServer:
    """Serves the agents of workers. Every process listens; a standby sends agents on to the leader."""

    verifier: TokenVerifier
    progress_store: ProgressStore
    agent_registry: AgentRegistry
    certificate: Certificate
    leading: Callable[[], bool]
    report_counter: Counter
    """Report requests, by `result`."""
    sync_counter: Counter
    """Sync requests, by `result`."""
    workers: WorkerIndex
    """The known workers: limits grow with their number."""
    pods_of: Callable[[JobView], Sequence[PodView]] = lambda _: ()
    """Returns the pods of a job from the caches."""
    authenticated: AuthenticatedConnections = field(init=False)
    _limits: RequestLimits = field(init=False)

    def __post_init__(self) -> None:
        """Have the agent registry learn of closed connections, and start with unused limits."""
        self.authenticated = AuthenticatedConnections(self.agent_registry.idle_disconnected)
        self._limits = RequestLimits(self.workers)

    @asynccontextmanager
    async def serve(self, host: str, port: int) -> AsyncIterator[int]:
        """Serve while inside. Yields the port. Raises OSError."""
        application = web.Application(client_max_size=MAX_BODY_BYTES)
        application.add_routes([web.post(REPORT_PATH, self._report), web.post(SYNC_PATH, self._sync)])
        runner = web.AppRunner(
            application,
            access_log=None,
            logger=wire_log(__name__),
            auto_decompress=False,
            shutdown_timeout=1.0,
            handler_cancellation=True,
        )
        await runner.setup()
        try:
            admission = Admission(
                self.authenticated,
                ConnectionLimits(self.workers, time.monotonic),
                self.agent_registry.restart_grace_period,
                self._turned_away,
            )
            async with listen(runner, host, port, self.certificate.context, admission) as bound_port:
                yield bound_port
        finally:
            await runner.cleanup()

    def _turned_away(self, address: str) -> None:
        if self.workers.at(address):
            self.agent_registry.turned_away(address)

    async def _report(self, request: web.Request) -> web.Response:
        response = await self._respond(request, self.report_counter, self._accept_report)
        # The next report comes much later, and goes to the process that leads by then.
        response.force_close()
        return response

    async def _sync(self, request: web.Request) -> web.Response:
        response = await self._respond(request, self.sync_counter, self._wait_for_assignment)
        if response.status != STATUS[RejectionReason.ACCEPTED]:
            response.force_close()
        elif (connection := request.transport) is not None:
            self.agent_registry.notifier.pause(connection)
        return response

    async def _respond(self, request: web.Request, counter: Counter, handle: Handler) -> web.Response:
        """Authenticate the sender and handle the request. Return the answer or the rejection, and count it."""
        try:
            with self.authenticated.request_in_progress(request.protocol):
                sender = await self._sender(request)
                # Before the body: that of an unknown pod, or of one that asks too often, is not read.
                pod, job = self.progress_store.resolve(sender)
                self._limits.check(pod)
                reason, body = RejectionReason.ACCEPTED, await handle(request, sender, pod, job)
        except RefusedError as rejection:
            refusal = Refusal(reason=rejection.reason, message=rejection.message, after=rejection.after)
            reason, body = rejection.reason, refusal.body()
            _LOG.debug(f"rejected request remote={request.remote} reason={reason} message={rejection.message!r}")
        counter.labels(reason).inc()
        return web.json_response(body, status=STATUS[reason])

    async def _accept_report(self, request: web.Request, sender: PodIdentity, _: PodView, job: JobView) -> Json:
        body = await self._body(request, reports.max_report_bytes(job.processes))
        report = reports.read(Report, body, job.processes)
        return ReportAnswer(next=self.progress_store.accept(sender, report)).model_dump()

    async def _wait_for_assignment(self, request: web.Request, sender: PodIdentity, pod: PodView, job: JobView) -> Json:
        """Return the worker's assignment as soon as it differs from what the worker does."""
        has_arrived = request.content.is_eof()
        call = reports.read(SyncRequest, await self._body(request, reports.MAX_SYNC_BODY_BYTES))
        if not has_arrived:
            # The job may have changed meanwhile.
            pod, job = self.progress_store.resolve(sender)
        current = self._assignment(call, pod, job)
        self.authenticated.add(job.uid, sender.uid, request.protocol)
        known = self.agent_registry.knows(job.uid, sender.uid)
        deadline = time.monotonic() + (LONG_POLL_SECONDS if known else min(FIRST_LONG_POLL_SECONDS, LONG_POLL_SECONDS))
        with self.agent_registry.long_poll(job.uid, sender.uid, self._agent_view(call)) as poll:
            try:
                while not current.is_news(call) and call.state not in FINAL_STATES:
                    if (remaining := deadline - time.monotonic()) <= 0:
                        break
                    await poll.wait_for_change(remaining)
                    if not self.leading():
                        raise RefusedError(RejectionReason.NOT_LEADING, "this process is no longer the leader")
                    current = self._assignment(call, *self.progress_store.resolve(sender))
            except asyncio.CancelledError:
                self.authenticated.remove(request.protocol)
                self.agent_registry.disconnected(job.uid, sender.uid, poll, request.content.exception())
                raise
        return _assignment_json(current, self._secret(job, current))

    def _secret(self, job: JobView, current: Assignment) -> str:
        """Return the secret of the attempt for an agent that starts it; empty where the framework needs none."""
        if not (current.run and job.spec.framework.starts_remotely):
            return ""
        return self.certificate.attempt_secret(job.uid, current.attempt)

    def _assignment(self, call: SyncRequest, pod: PodView, job: JobView) -> Assignment:
        # Only ranks that have yet to start need the others' addresses: with many workers their list is long.
        waits = job.spec.framework.needs_addresses and call.state is AgentState.WAITING
        try:
            return assignment(pod, job, self.pods_of(job) if waits else ())
        except RefusedError:
            self.agent_registry.dismiss(job.uid, pod.uid)
            raise

    def _agent_view(self, call: SyncRequest) -> AgentView:
        failure, leave = call.failure, call.leave
        if failure is None:
            return AgentView(call.attempt, call.state, leave=leave, idle=call.idle, prepared=call.prepared)
        failed_at = self.agent_registry.now() - timedelta(seconds=min(failure.age, MAX_FAILURE_AGE_SECONDS))
        return AgentView(call.attempt, call.state, container_exit(failed_at, failure.code, failure.message))

    async def _sender(self, request: web.Request) -> PodIdentity:
        if not self.leading():
            raise RefusedError(
                RejectionReason.NOT_LEADING, "this process is a standby; ask the next address of this name"
            )
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            raise RefusedError(
                RejectionReason.NO_TOKEN, "a request needs `Authorization: Bearer` and the pod's own token"
            )
        # Before the body: the body of an unauthenticated request is not read.
        return await self.verifier.identify(token.strip())

    async def _body(self, request: web.Request, limit: int) -> bytes:
        if (request.content_length or 0) > limit:
            raise _too_large(limit)
        try:
            if request.content.is_eof():
                # It has arrived together with the head, as that of an agent does.
                body = request.content.read_nowait()
            else:
                body = await self._body_in_transit(request, limit)
        except web.HTTPRequestEntityTooLarge as error:
            raise _too_large(limit) from error
        except (HttpProcessingError, ClientError, ConnectionError) as error:
            raise RefusedError(RejectionReason.MALFORMED, f"the body is incomplete: {error}") from error
        except TimeoutError as error:
            raise RefusedError(
                RejectionReason.TOO_SLOW, f"the body took longer than {BODY_TIMEOUT_SECONDS:.0f} s"
            ) from error
        if len(body) > limit:
            raise _too_large(limit)
        return body

    async def _body_in_transit(self, request: web.Request, limit: int) -> bytes:
        """Return the body, or a beginning that exceeds the limit. One that is sent in chunks has no length before its end."""
        body = bytearray()
        with self.authenticated.body_in_transit(request.protocol):
            async with asyncio.timeout(BODY_TIMEOUT_SECONDS):
                while len(body) <= limit and (chunk := await request.content.readany()):
                    body += chunk
        return bytes(body)


def _too_large(limit: int) -> RefusedError:
    return RefusedError(RejectionReason.TOO_LARGE, f"this request of this worker has at most {limit} bytes")


def _assignment_json(current: Assignment, secret: str) -> Json:
    return SyncAnswer(
        attempt=current.attempt,
        run=current.run,
        environment=current.environment,
        restart=current.restart,
        hung=current.hung,
        stop=StopOrder(step=current.stop.step) if current.stop else None,
        stacks=current.stacks,
        secret=secret,
    ).body()
