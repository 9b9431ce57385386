"""`POST /v1/report`: what agents tell. Each answer says when to tell again; each refusal says why, and is counted."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from aiohttp import ClientError, web
from aiohttp.http_exceptions import HttpProcessingError
from prometheus_client import Counter

from trainyard.coordinator import reports
from trainyard.coordinator.board import Board
from trainyard.coordinator.certificate import Certificate
from trainyard.coordinator.listener import listen
from trainyard.coordinator.refusals import STATUS, RefusedError, Why
from trainyard.coordinator.tokens import Verifier

_LOG = logging.getLogger(__name__)

REPORT = "/v1/report"
BODY_SECONDS = 10.0
"""How long the body of a report may take to arrive."""
RENEWAL_SECONDS = 60.0
"""How often the certificate's files are looked at."""


@dataclass(frozen=True, slots=True)
class Coordinator:
    """Hears the agents of workers. Every process serves; those that stand by send the agents on to the leader."""

    verifier: Verifier
    board: Board
    certificate: Certificate
    leading: Callable[[], bool]
    heard: Counter
    """Labelled by `result`."""

    @asynccontextmanager
    async def serve(self, host: str, port: int) -> AsyncIterator[int]:
        """Serve while inside. Yields the port. Raises OSError."""
        application = web.Application(client_max_size=reports.LONGEST_REPORT)
        application.add_routes([web.post(REPORT, self._report)])
        runner = web.AppRunner(
            application, access_log=None, logger=_wire_log(), auto_decompress=False, shutdown_timeout=1.0
        )
        await runner.setup()
        renewal = asyncio.create_task(self._renew())
        try:
            async with listen(runner, host, port, self.certificate.context) as bound:
                yield bound
        finally:
            renewal.cancel()
            await runner.cleanup()

    async def _report(self, request: web.Request) -> web.Response:
        why, body = Why.ACCEPTED, dict[str, object]()
        try:
            body["next"] = await self._accept(request)
        except RefusedError as refusal:
            why, body = refusal.why, {"reason": refusal.why, "message": refusal.message}
            _LOG.debug(f"a report from {request.remote} is refused: {why}: {refusal.message}")
        self.heard.labels(why).inc()
        answer = web.json_response(body, status=STATUS[why])
        # The next report is long in coming, and goes to whoever leads by then.
        answer.force_close()
        return answer

    async def _accept(self, request: web.Request) -> float:
        if not self.leading():
            raise RefusedError(Why.NOT_LEADING, "this process stands by; ask the next address of this name")
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            raise RefusedError(Why.NO_TOKEN, "a report needs `Authorization: Bearer` and the pod's own token")
        # Before the body: a stranger's is not even read.
        sender = await self.verifier.pod(token.strip())
        try:
            async with asyncio.timeout(BODY_SECONDS):
                body = await request.read()
        except web.HTTPRequestEntityTooLarge as error:
            raise RefusedError(Why.TOO_LARGE, f"a report has {reports.LONGEST_REPORT} bytes at most") from error
        except (HttpProcessingError, ClientError, ConnectionError) as error:
            raise RefusedError(Why.MALFORMED, f"the body broke off: {error}") from error
        except TimeoutError as error:
            raise RefusedError(Why.TOO_SLOW, f"the body took longer than {BODY_SECONDS:.0f} s") from error
        return self.board.accept(sender, reports.read(body))

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
