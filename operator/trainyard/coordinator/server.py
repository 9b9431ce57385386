"""What agents ask and tell. Each refusal says why, and is counted.

`POST /v1/report`: how far the ranks are; the answer says when to tell again. `POST /v1/sync`: what the agent does; the answer comes as soon
as it is to do something else, or after a minute.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
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
    Refusal,
    Report,
    ReportAnswer,
    StopOrder,
    SyncAnswer,
    SyncRequest,
)
from trainyard.coordinator import reports
from trainyard.coordinator.agent_registry import Attendance
from trainyard.coordinator.assignments import Assignment, assignment
from trainyard.coordinator.certificate import Certificate
from trainyard.coordinator.listener import Guests, listen
from trainyard.coordinator.progress_store import Board
from trainyard.coordinator.rejections import STATUS, RefusedError, Why
from trainyard.coordinator.tokens import PodIdentity, Verifier
from trainyard.domain.state.observe import an_exit
from trainyard.domain.state.snapshot import AgentView, Doing, JobView, PodView

_LOG = logging.getLogger(__name__)

Json = dict[str, object]
Work = Callable[[web.Request, PodIdentity], Awaitable[Json]]

LAST_WORDS = frozenset({Doing.ENDED, Doing.RESTARTING})
"""Who says so waits for no word."""
HOLD_SECONDS = 60.0
"""How long an agent waits for a word before it asks again."""
FIRST_HOLD_SECONDS = 2.0
"""The same of one that this process has not heard yet: who has had an answer waits for the next leader, should this one's node be lost."""
BODY_SECONDS = 10.0
"""How long the body of a request may take to arrive."""
LONGEST_AGE = 24 * 3600.0
"""Of a failure, in seconds."""
RENEWAL_SECONDS = 60.0
"""How often the certificate's files are looked at."""


@dataclass(slots=True)
class Coordinator:
    """Hears the agents of workers. Every process serves; those that stand by send the agents on to the leader."""

    verifier: Verifier
    board: Board
    attendance: Attendance
    certificate: Certificate
    leading: Callable[[], bool]
    heard: Counter
    """Reports. Labelled by `result`."""
    called: Counter
    """Calls, likewise."""
    guests: Guests = field(init=False)

    def __post_init__(self) -> None:
        """Who hangs up is known to the attendance."""
        self.guests = Guests(self.attendance.hung_up)

    @asynccontextmanager
    async def serve(self, host: str, port: int) -> AsyncIterator[int]:
        """Serve while inside. Yields the port. Raises OSError."""
        application = web.Application(client_max_size=MAX_BODY_BYTES)
        application.add_routes([web.post(REPORT_PATH, self._report), web.post(SYNC_PATH, self._sync)])
        runner = web.AppRunner(
            application,
            access_log=None,
            logger=_wire_log(),
            auto_decompress=False,
            shutdown_timeout=1.0,
            handler_cancellation=True,
        )
        await runner.setup()
        renewal = asyncio.create_task(self._renew())
        try:
            tls, full = self.certificate.context, self.attendance.miss_nobody
            async with listen(runner, host, port, tls, self.guests, full) as bound:
                yield bound
        finally:
            renewal.cancel()
            await runner.cleanup()

    async def _report(self, request: web.Request) -> web.Response:
        answer = await self._answer(request, self.heard, self._accept)
        # The next report is long in coming, and goes to whoever leads by then.
        answer.force_close()
        return answer

    async def _sync(self, request: web.Request) -> web.Response:
        answer = await self._answer(request, self.called, self._word)
        if answer.status != STATUS[Why.ACCEPTED]:
            answer.force_close()
        elif (connection := request.transport) is not None:
            self.attendance.turns.hold(connection)
        return answer

    async def _answer(self, request: web.Request, counter: Counter, work: Work) -> web.Response:
        """What comes of the work for the sender, or why it is refused; counted."""
        try:
            with self.guests.asks(request.protocol):
                why, body = Why.ACCEPTED, await work(request, await self._sender(request))
        except RefusedError as refusal:
            why, body = refusal.why, Refusal(reason=refusal.why, message=refusal.message).model_dump()
            _LOG.debug(f"a request from {request.remote} is refused: {why}: {refusal.message}")
        counter.labels(why).inc()
        return web.json_response(body, status=STATUS[why])

    async def _accept(self, request: web.Request, sender: PodIdentity) -> Json:
        report = reports.read(Report, await self._body(request))
        return ReportAnswer(next=self.board.accept(sender, report)).model_dump()

    async def _word(self, request: web.Request, sender: PodIdentity) -> Json:
        """What the worker is to do, as soon as that is not what it does."""
        call = reports.read(SyncRequest, await self._body(request))
        pod, job = self.board.known(sender)
        given = self._assignment(pod, job)
        self.guests.welcome(job.uid, sender.uid, request.protocol)
        known = self.attendance.knows(job.uid, sender.uid)
        end = time.monotonic() + (HOLD_SECONDS if known else min(FIRST_HOLD_SECONDS, HOLD_SECONDS))
        with self.attendance.call(job.uid, sender.uid, self._seen(call)) as waits:
            try:
                while not given.is_news(call) and call.state not in LAST_WORDS and (left := end - time.monotonic()) > 0:
                    await waits.news(left)
                    if not self.leading():
                        raise RefusedError(Why.NOT_LEADING, "this process does not lead any more")
                    given = self._assignment(*self.board.known(sender))
            except asyncio.CancelledError:
                self.guests.leaves(request.protocol)
                self.attendance.left(job.uid, sender.uid, waits, request.content.exception())
                raise
        stop = StopOrder(step=given.stop.step) if given.stop else None
        return SyncAnswer(
            attempt=given.attempt,
            run=given.run,
            environment=given.environment,
            restart=given.restart,
            hung=given.hung,
            stop=stop,
        ).body()

    def _assignment(self, pod: PodView, job: JobView) -> Assignment:
        try:
            return assignment(pod, job)
        except RefusedError:
            self.attendance.dismiss(job.uid, pod.uid)
            raise

    def _seen(self, call: SyncRequest) -> AgentView:
        failed, leave = call.failure, call.leave
        if failed is None:
            return AgentView(call.attempt, call.state, leave=leave, prepared=call.prepared)
        age = timedelta(seconds=min(failed.age, LONGEST_AGE))
        return AgentView(call.attempt, call.state, an_exit(self.attendance.now() - age, failed.code, failed.message))

    async def _sender(self, request: web.Request) -> PodIdentity:
        if not self.leading():
            raise RefusedError(Why.NOT_LEADING, "this process stands by; ask the next address of this name")
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            raise RefusedError(Why.NO_TOKEN, "a request needs `Authorization: Bearer` and the pod's own token")
        # Before the body: a stranger's is not even read.
        return await self.verifier.pod(token.strip())

    async def _body(self, request: web.Request) -> bytes:
        try:
            async with asyncio.timeout(BODY_SECONDS):
                return await request.read()
        except web.HTTPRequestEntityTooLarge as error:
            raise RefusedError(Why.TOO_LARGE, f"a report has {MAX_BODY_BYTES} bytes at most") from error
        except (HttpProcessingError, ClientError, ConnectionError) as error:
            raise RefusedError(Why.MALFORMED, f"the body broke off: {error}") from error
        except TimeoutError as error:
            raise RefusedError(Why.TOO_SLOW, f"the body took longer than {BODY_SECONDS:.0f} s") from error

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(RENEWAL_SECONDS)
            self.certificate.look()


def _wire_log() -> logging.Logger:
    """For aiohttp. A request that is broken is its sender's affair, and anybody's to send as often as they like; what is told is our own errors."""
    log = logging.getLogger(f"{__name__}.wire")
    log.addFilter(_is_ours)
    return log


def _is_ours(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, HttpProcessingError | ClientError | ConnectionError)
