"""HTTP client of one API server: requests and watch streams as plain JSON. Knows no kinds, decides nothing."""

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
from trainyard.kube.permissions import PermissionTracker
from trainyard.kube.token_bucket import TokenBucket

RequestObserver = Callable[[str, int, float], None]
"""Called after each request with its method, HTTP status (0: no answer) and seconds; for a watch, when the headers
arrived."""

_CONNECT_SECONDS = 10.0
_POOL_SIZE = 100
_MAX_THROTTLE_RETRIES = 3
_MAX_RETRY_AFTER_SECONDS = 10.0
_JSON = "application/json"
METADATA = f"{_JSON};as=PartialObjectMetadata;g=meta.k8s.io;v=v1,{_JSON}"
"""Ask for the object's metadata only; a server that cannot do so returns the whole object."""


async def _anonymous() -> str | None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """The address of an API server and the credentials for it."""

    server: str
    """URL without a trailing slash."""
    tls: ssl.SSLContext | None = None
    authorization: Callable[[], Awaitable[str | None]] = _anonymous
    """Returns the Authorization header. Called for each request, so that a rotated token is used at once."""
    proxy: str | None = None
    """From the kubeconfig; without it the proxy settings of the environment apply."""
    tls_server_name: str | None = None
    namespace: str | None = None
    """The default namespace of the credentials, if any."""

    def open_client(self, *listeners: aiohttp.ClientMiddlewareType, limit: int = 0) -> aiohttp.ClientSession:
        """Return a new HTTP client with these credentials and at most `limit` connections (0: no limit). The caller
        closes it.

        kopf (`kopf.AiohttpSession`) gets a client of its own, since it closes the clients it is given.
        """
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=limit, ssl=self.tls if self.tls is not None else True),
            middlewares=(*listeners, self._authorize),
            # Not aiohttp's `trust_env`, which reads ~/.netrc again for each request, in a thread.
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
    """Requests to one API server. Each failure is raised as `ApiError`, cancellation as itself.

    Only a 429 with `Retry-After` is retried, a few times and for a few seconds: the caller decides about other
    failures. (aiohttp repeats a request other than POST and PATCH once if a kept-alive connection breaks under it.)
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
        """`budget` limits the requests per second; requests above it wait. Watches are not limited.

        `clock`: the clock of another session with the same server, to share it.
        """
        self.endpoint = endpoint
        self.clock = clock or ServerClock()
        """Corrected by the `Date` of each answer."""
        self.on_request = on_request
        self.permit: Callable[[], float] | None = None
        """Called before each write. Returns the seconds within which the write must be over, or raises: then nothing
        is sent."""
        self.permissions = PermissionTracker()
        """Records which requests the API server denies because a permission is missing, and which it grants again."""
        self.writes_in_flight = 0
        """Writes without an answer so far: they may or may not have been carried out."""
        self._sleep = sleep
        self._budget = budget
        self._client: aiohttp.ClientSession | None = None
        self._watches: aiohttp.ClientSession | None = None
        """Watches have a client of their own: those of a hundred namespaces would leave no connections for requests."""

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
        """Send a request and return the JSON of its answer. Raises `ApiError`."""
        data = None if body is None else orjson.dumps(body)
        headers = {"Accept": accept, "Accept-Encoding": "identity"}
        if data is not None:
            headers["Content-Type"] = content_type
        for attempt in range(_MAX_THROTTLE_RETRIES + 1):
            if self._budget is not None and (turn := self._budget.reserve()):
                await self._sleep(turn)
            # Called last, at each attempt, since a permit is valid for seconds only.
            seconds, query = self._limited(method, timeout, params)
            try:
                self.writes_in_flight += method != "GET"
                answer = await self._once(method, path, query, data, headers, seconds)
            except ApiError as error:
                self.permissions.refused(method, path, error)
                wait = _throttled_for(error)
                if wait is None or attempt == _MAX_THROTTLE_RETRIES:
                    raise
            else:
                self.permissions.granted(method, path)
                return answer
            finally:
                self.writes_in_flight -= method != "GET"
            await self._sleep(wait)
        raise AssertionError  # the last round returns or raises

    def _limited(
        self, method: str, timeout: float, params: Mapping[str, str] | None
    ) -> tuple[float, Mapping[str, str] | None]:
        """Return the timeout and the parameters of a request within what `permit` allows."""
        if self.permit is None or method == "GET":
            return timeout, params
        seconds = min(timeout, self.permit())
        # The timeout is sent to the server too: a request that waits in one of its queues or in a socket must not be
        # carried out after another process has become the leader.
        return seconds, {**(params or {}), "timeout": f"{seconds * 1000:.0f}ms"}

    async def stream(
        self, path: str, params: Mapping[str, str] | None = None, *, idle_timeout: float
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Yield the events of a watch until the server ends it. Raises `ApiError`, also after `idle_timeout` seconds of
        silence.

        Silence is the only sign of a half-open connection, where the other end has vanished without a FIN.
        """
        opened = False
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
                self.clock.observe(response.headers.get("Date"), asked)
                self.permissions.granted("GET", path, watch=True)
                opened = True
                async for line in read_lines(response.content):
                    yield _event(line)
        except ApiError as error:
            self.permissions.refused("GET", path, error, watch=True)
            raise
        except (aiohttp.ClientError, OSError) as error:
            if opened and isinstance(error, TimeoutError):
                raise ApiError(
                    UNREACHABLE, "Silent", f"{path}: the watch was silent for {idle_timeout:.0f} s"
                ) from error
            raise _unreachable(error, path) from error

    async def close(self) -> None:
        """Close all connections. The session cannot be used afterwards."""
        for client in (self._client, self._watches):
            if client is not None:
                await client.close()

    def _open(self) -> aiohttp.ClientSession:
        # Not in the constructor: a client binds to the running loop, and a session is created before the loop runs.
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
                # Not for error answers, which may come from a proxy with another clock.
                self.clock.observe(response.headers.get("Date"), asked)
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
    """Return the proxy that HTTPS_PROXY and similar variables name for this server, unless NO_PROXY lists it."""
    parts = urlsplit(server)
    return None if proxy_bypass(parts.netloc) else getproxies().get(parts.scheme)


async def _refuse(response: aiohttp.ClientResponse) -> NoReturn:
    """Raise the server's error. Proxies and load balancers answer in HTML: then its first line is the message."""
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


def _throttled_for(error: ApiError) -> float | None:
    """Return the seconds after which to send a throttled request again; None for other errors and for long waits."""
    wait = error.retry_after
    return wait if error.status == 429 and wait is not None and wait <= _MAX_RETRY_AFTER_SECONDS else None


def _unreachable(error: Exception, path: str) -> ApiError:
    # `TimeoutError` is an OSError, and so are aiohttp's timeouts, most of which have no text.
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
    """Yield lines of any length: the reader's own `readline` rejects lines above 128 KiB, and a pod may have 1.5 MiB.

    Bytes after the last newline are part of an event and are dropped with the connection.
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
