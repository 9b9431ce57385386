"""HTTP to one API server: requests and watch streams as plain JSON. Knows no kinds, keeps no state, decides nothing."""

import asyncio
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
import orjson

from trainyard.kube.clock import ServerClock
from trainyard.kube.errors import UNREACHABLE, ApiError
from trainyard.kube.permissions import Rights
from trainyard.kube.token_bucket import TokenBucket

RequestObserver = Callable[[str, int, float], None]
"""Called after each request with its method, HTTP status (0: no answer) and seconds. For a watch: when its headers came."""

_CONNECT_SECONDS = 10.0
_POOL_SIZE = 100
_POLITE_RETRIES = 3
_LONGEST_RETRY_AFTER = 10.0
_JSON = "application/json"
METADATA = f"{_JSON};as=PartialObjectMetadata;g=meta.k8s.io;v=v1,{_JSON}"
"""No more of an object than that; a server that cannot leave the rest away answers with the whole."""


async def _anonymous() -> str | None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """An API server and the right to talk to it."""

    server: str
    """URL without a trailing slash."""
    tls: ssl.SSLContext | None = None
    authorization: Callable[[], Awaitable[str | None]] = _anonymous
    """The value of the Authorization header. Asked for each request, so that a rotated token is picked up."""
    proxy: str | None = None
    """From the kubeconfig; without one the environment's proxy settings apply."""
    tls_server_name: str | None = None
    namespace: str | None = None
    """The default namespace of the credentials, where they have one."""

    def open_client(self, *listeners: aiohttp.ClientMiddlewareType, limit: int = 0) -> aiohttp.ClientSession:
        """A new HTTP client with these credentials in each of its requests, and so many connections (0: any number). Whoever opens it
        closes it.

        Also for kopf (`kopf.AiohttpSession`), which closes the clients it is given: so it gets one of its own.
        """
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=limit, ssl=self.tls if self.tls is not None else True),
            middlewares=(*listeners, self._authorize),
            # Not aiohttp's own look at the environment: it reads ~/.netrc again for each request, in a thread.
            proxy=self.proxy if self.proxy is not None else _environment_proxy(self.server),
        )

    async def _authorize(
        self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        if header := await self.authorization():
            request.headers["Authorization"] = header
        if self.tls_server_name is not None:
            request.server_hostname = self.tls_server_name
        return await handler(request)


class Session:
    """Requests to one API server. Failures of every sort come out as `ApiError`, cancellation as itself.

    Nothing is retried but a 429 that says when to come back, a few times and for a few seconds: what a failure means is for the
    caller to decide. (aiohttp itself repeats a request other than POST and PATCH once if a kept-alive connection breaks under it.)
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        on_request: RequestObserver | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        budget: TokenBucket | None = None,
        clock: ServerClock | None = None,
    ) -> None:
        """`budget` bounds how many requests are made in a second; those above it wait for their turn. Watches are free.

        `clock`: that of another session with the same server, to be shared.
        """
        self.endpoint = endpoint
        self.clock = clock or ServerClock()
        """Told the time of each answer of the API server."""
        self.on_request = on_request
        self.permit: Callable[[], float] | None = None
        """Asked before each write for the seconds within which it has to be over. May raise what it likes: then nothing is sent."""
        self.rights = Rights()
        """Told of what the API server refuses for the want of a right, and of what it grants again."""
        self.under_way = 0
        """Writes that were sent and not answered yet: nobody knows whether they were carried out, or will be."""
        self._sleep = sleep
        self._budget = budget
        self._client: aiohttp.ClientSession | None = None
        self._watches: aiohttp.ClientSession | None = None
        """Watches have connections of their own: those of a hundred namespaces would leave none for requests."""

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        content_type: str = _JSON,
        timeout: float = 30.0,  # noqa: ASYNC109 - aiohttp keeps it, and tells a time-out from a cancellation
        accept: str = _JSON,
    ) -> dict[str, Any]:
        """One request and its answer, in this form. Raises `ApiError`."""
        data = None if body is None else orjson.dumps(body)
        headers = {"Accept": accept, "Accept-Encoding": "identity"}
        if data is not None:
            headers["Content-Type"] = content_type
        for attempt in range(_POLITE_RETRIES + 1):
            if self._budget is not None and (turn := self._budget.reserve()):
                await self._sleep(turn)
            seconds, query = timeout, params
            if self.permit is not None and method != "GET":
                # Asked last of all, and at each attempt. The server is told too: a request that waits in its queues, or in
                # a socket's, must not be carried out when somebody else has begun to write.
                seconds = min(timeout, self.permit())
                query = {**(params or {}), "timeout": f"{seconds * 1000:.0f}ms"}
            try:
                self.under_way += method != "GET"
                answer = await self._once(method, path, query, data, headers, seconds)
            except ApiError as error:
                self.rights.refused(method, path, error)
                wait = error.retry_after
                if error.status != 429 or wait is None or wait > _LONGEST_RETRY_AFTER or attempt == _POLITE_RETRIES:
                    raise
            else:
                self.rights.granted(method, path)
                return answer
            finally:
                self.under_way -= method != "GET"
            await self._sleep(wait)
        raise AssertionError  # the last round returns or raises

    async def stream(
        self, path: str, params: Mapping[str, str] | None = None, *, idle_timeout: float
    ) -> AsyncGenerator[dict[str, Any], None]:
        """The events of a watch, until the server ends it. Raises `ApiError`, also after `idle_timeout` seconds of silence.

        Silence is the only sign of a half-open connection, where the other side is gone and nobody has said so.
        """
        begun = False
        limits = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS, sock_read=idle_timeout)
        started, asked = time.monotonic(), self.clock.steady()
        status = UNREACHABLE
        try:
            client = self._watches = self._watches or self.endpoint.open_client()
            try:
                response = await client.get(self.endpoint.server + path, params=params, timeout=limits)
                status = response.status
            finally:
                self._observe("GET", status, started)
            async with response:
                if status >= 400:
                    await _refuse(response)
                self.clock.heard(response.headers.get("Date"), asked)
                self.rights.granted("GET", path, watch=True)
                begun = True
                async for line in read_lines(response.content):
                    yield _event(line)
        except ApiError as error:
            self.rights.refused("GET", path, error, watch=True)
            raise
        except (aiohttp.ClientError, OSError) as error:
            if begun and isinstance(error, TimeoutError):
                raise ApiError(UNREACHABLE, "Silent", f"{path}: nothing was heard for {idle_timeout:.0f} s") from error
            raise _unreachable(error, path) from error

    async def close(self) -> None:
        """Close all connections. The session may not be used again."""
        for client in (self._client, self._watches):
            if client is not None:
                await client.close()

    def _open(self) -> aiohttp.ClientSession:
        # Not in the constructor: a client binds to the running loop, and a session is made before there is one.
        if self._client is None:
            self._client = self.endpoint.open_client(limit=_POOL_SIZE)
        return self._client

    async def _once(
        self,
        method: str,
        path: str,
        params: Mapping[str, str] | None,
        data: bytes | None,
        headers: Mapping[str, str],
        seconds: float,
    ) -> dict[str, Any]:
        started, asked = time.monotonic(), self.clock.steady()
        status = UNREACHABLE
        try:
            async with self._open().request(
                method,
                self.endpoint.server + path,
                params=params,
                data=data,
                headers=headers,
                timeout=aiohttp.ClientTimeout(total=seconds, sock_connect=_CONNECT_SECONDS),
            ) as response:
                if response.status >= 400:
                    status = response.status
                    await _refuse(response)
                # Not of a refusal, which may be that of a proxy with a clock of its own.
                self.clock.heard(response.headers.get("Date"), asked)
                answer = orjson.loads(await response.read())
                status = response.status
        except (aiohttp.ClientError, OSError) as error:
            raise _unreachable(error, path) from error
        except ValueError as error:
            raise ApiError(
                UNREACHABLE, "MalformedAnswer", f"{method} {path}: the answer is not JSON: {error}"
            ) from error
        finally:
            self._observe(method, status, started)
        if not isinstance(answer, dict):
            raise ApiError(UNREACHABLE, "MalformedAnswer", f"{method} {path}: the answer is not an object")
        return answer

    def _observe(self, method: str, status: int, started: float) -> None:
        if self.on_request is not None:
            self.on_request(method, status, time.monotonic() - started)


def _environment_proxy(server: str) -> str | None:
    """What HTTPS_PROXY and its kin say for this server, unless NO_PROXY has it."""
    parts = urlsplit(server)
    return None if proxy_bypass(parts.netloc) else getproxies().get(parts.scheme)


async def _refuse(response: aiohttp.ClientResponse) -> NoReturn:
    """Raise what the server said. Proxies and load balancers answer in HTML: then the first line of it is the message."""
    text = await response.text(errors="replace")
    try:
        body = orjson.loads(text)
    except ValueError:
        body = None
    if not isinstance(body, dict):
        line = text.strip().partition("\n")[0][:200]
        body = {"reason": response.reason, "message": line or f"HTTP {response.status} {response.reason}"}
    after = response.headers.get("Retry-After", "")
    raise ApiError.from_status(response.status, body, retry_after=float(after) if after.isdecimal() else None)


def _unreachable(error: Exception, path: str) -> ApiError:
    # `TimeoutError` is an OSError, and so are aiohttp's time-outs; most of them have no text of their own.
    reason = "Timeout" if isinstance(error, TimeoutError) else "Unreachable"
    return ApiError(UNREACHABLE, reason, f"{path}: {str(error) or type(error).__name__}")


def _event(line: bytes) -> dict[str, Any]:
    try:
        event = orjson.loads(line)
    except ValueError as error:
        raise ApiError(UNREACHABLE, "MalformedEvent", f"a line of the watch is not JSON: {error}") from error
    if not isinstance(event, dict):
        raise ApiError(UNREACHABLE, "MalformedEvent", "a line of the watch is not an object")
    return event


async def read_lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Lines of any length: the reader's own `readline` refuses those above 128 KiB, and a pod may have 1.5 MiB.

    What follows the last line end is the torso of an event and is dropped with the connection.
    """
    parts: list[bytes] = []
    async for chunk in content.iter_any():
        *complete, rest = chunk.split(b"\n")
        for line in complete:
            parts.append(line)
            if whole := b"".join(parts).strip():
                yield whole
            parts.clear()
        if rest:
            parts.append(rest)
