"""A proxy between operator and API server: forwards everything, records the operator's calls, and injects a fault."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any, Final, Self

import aiohttp
from aiohttp import web
from typing_extensions import override
from yarl import URL

from tests.support.control_plane import ControlPlane

Json = dict[str, Any]
Event = Json
Events = asyncio.Queue[Event | None]
"""The events of one watch; None is its end."""

KEPT_HEADERS: Final = ("Authorization", "Content-Type", "Accept", "User-Agent")


class CutError(Exception):
    """The connection breaks here, without an answer or in the middle of one."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The response that the client receives."""

    status: int
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()

    @classmethod
    def refusal(cls, status: int, reason: str, *, retry_after: int | None = None) -> "Answer":
        """A `v1.Status`, as the API server words it."""
        body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": status, "reason": reason}
        more = () if retry_after is None else (("Retry-After", str(retry_after)),)
        return cls(status, json.dumps({**body, "message": f"a test made this {status}"}).encode(), more)


@dataclass(slots=True)
class Call:
    """One request of an operator."""

    who: str
    method: str
    path: str
    query: str
    body: bytes
    at: float
    number: int = 0
    """Its place among the writes that count: all but those of events and leases. 0: it is none of them."""
    status: int = 0

    @property
    def write(self) -> bool:
        return self.method != "GET"

    @property
    def watch(self) -> bool:
        return self.method == "GET" and ("watch=true" in self.query or "watch=1" in self.query)

    @property
    def resource(self) -> str:
        """The plural of what it is about; empty where it only asks what there is."""
        words = self.path.split("/")[3 if self.path.startswith("/api/") else 4 :]
        if words[:1] == ["namespaces"] and len(words) > 2:
            return words[2]
        return words[0] if words else ""

    @property
    def listing(self) -> bool:
        return (
            self.method == "GET" and not self.watch and self.path.endswith(f"/{self.resource}") and bool(self.resource)
        )

    @override
    def __str__(self) -> str:
        return f"{self.method} {self.path}"


class Fault:
    """What goes wrong. This one: nothing; each kind overrides where it strikes."""

    struck = False
    """Whether it had its occasion."""

    async def before(self, call: Call) -> Answer | None:
        """Before a request is passed on. An answer takes the place of the server's; may raise CutError."""

    async def after(self, call: Call, answer: Answer) -> Answer:  # noqa: ARG002 - for kinds that override it
        """Before an answer is passed back. May raise CutError."""
        return answer

    async def stream(self, call: Call, events: Events) -> AsyncIterator[Event]:  # noqa: ARG002 - for kinds that override it
        """Yield what is delivered in place of the events of a watch. To return ends the stream well, a CutError in the middle
        of an event."""
        while (event := await events.get()) is not None:
            yield event


@dataclass(slots=True)
class Proxy:
    """One listener for each operator, so that it is known who does what."""

    plane: ControlPlane
    fault: Fault
    calls: list[Call] = field(default_factory=list)
    _stack: contextlib.AsyncExitStack = field(default_factory=contextlib.AsyncExitStack, init=False)
    _client: aiohttp.ClientSession | None = field(default=None, init=False)
    _writes: int = field(default=0, init=False)
    _under_way: set[asyncio.Task[Answer]] = field(default_factory=set, init=False)

    async def __aenter__(self) -> Self:
        connector = aiohttp.TCPConnector(ssl=self.plane.tls(), limit=0)
        timeout = aiohttp.ClientTimeout(total=None)
        self._client = await self._stack.enter_async_context(
            aiohttp.ClientSession(connector=connector, timeout=timeout)
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*self._under_way, return_exceptions=True)
        await self._stack.aclose()

    async def listen(self, who: str) -> str:
        """A new listener; its URL."""

        async def handle(request: web.Request) -> web.StreamResponse:
            return await self._handle(who, request)

        application = web.Application(client_max_size=64 * 2**20)
        application.router.add_route("*", "/{path:.*}", handle)
        runner = web.AppRunner(application, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        self._stack.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return f"http://127.0.0.1:{runner.addresses[0][1]}"

    def writes(self) -> list[Call]:
        """The writes that count, in order."""
        return [call for call in self.calls if call.number]

    async def _handle(self, who: str, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        call = Call(who, request.method, request.path, request.query_string, body, time.monotonic())
        if call.write and call.resource not in {"events", "leases"}:
            self._writes += 1
            call.number = self._writes
        self.calls.append(call)
        try:
            if call.watch:
                return await self._watch(request, call)
            # A request that is on its way arrives, whatever becomes of the client meanwhile.
            exchange = asyncio.create_task(self._exchange(request, call))
            self._under_way.add(exchange)
            exchange.add_done_callback(self._under_way.discard)
            answer = await asyncio.shield(exchange)
            return web.Response(status=answer.status, body=answer.body, headers=dict(answer.headers))
        except (CutError, aiohttp.ClientError, OSError):
            if request.transport is not None:
                request.transport.abort()
            return web.Response(status=500)

    async def _exchange(self, request: web.Request, call: Call) -> Answer:
        answer = await self.fault.before(call)
        if answer is None:
            async with self._pass_on(request, call) as upstream:
                passed_on = [
                    (key, upstream.headers[key]) for key in ("Content-Type", "Retry-After") if key in upstream.headers
                ]
                answer = Answer(upstream.status, await upstream.read(), tuple(passed_on))
        call.status = answer.status
        return await self.fault.after(call, answer)

    async def _watch(self, request: web.Request, call: Call) -> web.StreamResponse:
        if answer := await self.fault.before(call):
            return web.Response(status=answer.status, body=answer.body, headers=dict(answer.headers))
        async with self._pass_on(request, call) as upstream:
            call.status = upstream.status
            response = web.StreamResponse(status=upstream.status, headers={"Content-Type": "application/json"})
            await response.prepare(request)
            if upstream.status >= 400:
                await response.write(await upstream.read())
                return response
            events: Events = asyncio.Queue()
            pump = asyncio.create_task(_read(upstream.content, events))
            try:
                async for event in self.fault.stream(call, events):
                    await response.write(json.dumps(event).encode() + b"\n")
            except CutError:
                await response.write(b'{"type":"MODIFIED","obj')
                raise
            finally:
                pump.cancel()
            return response

    def _pass_on(self, request: web.Request, call: Call) -> Any:
        assert self._client is not None
        # As it came: the query's own encoding is part of it.
        url = URL(f"{self.plane.server}{request.raw_path}", encoded=True)
        headers = {key: request.headers[key] for key in KEPT_HEADERS if key in request.headers}
        return self._client.request(call.method, url, data=BytesIO(call.body) if call.body else None, headers=headers)


async def _read(content: aiohttp.StreamReader, events: Events) -> None:
    rest = b""
    with contextlib.suppress(aiohttp.ClientError, OSError):
        async for chunk in content.iter_any():
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                if line.strip():
                    events.put_nowait(json.loads(line))
    events.put_nowait(None)
