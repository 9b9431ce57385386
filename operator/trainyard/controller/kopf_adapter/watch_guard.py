"""Hide answers from kopf that would make it stop, and the operator with it."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, Final, cast

import aiohttp
import orjson

from trainyard.api.constants import PLURAL
from trainyard.kube.backoff import Backoff
from trainyard.kube.errors import ApiError
from trainyard.kube.permissions import PermissionTracker
from trainyard.kube.session import read_lines

FATAL_STATUSES: Final = frozenset({400, 404, 410})
"""Statuses that kopf does not retry. The CRD may come back, and so may the server's history."""
CONTINUATION_PARAMETERS: Final = frozenset({"resourceVersion", "continue"})
"""Parameters of a watch, or of a page of a list, that continues an earlier one."""
MIN_WATCH_START_INTERVAL_SECONDS: Final = 1.0
"""Between the starts of two watches: kopf restarts one at once, however soon the last one ended."""
RELIST_EVENT: Final = b'{"type":"ERROR","object":{"code":410}}\n'
"""The only error in a stream that kopf survives. It lists again."""


def guard(permissions: PermissionTracker, on_listed: Callable[[str], object]) -> aiohttp.ClientMiddlewareType:
    """Return a middleware for kopf's client. It reports to `permissions` whether kopf may list and watch: kopf retries for
    ever and only logs.

    `on_listed` is called with the path when kopf has listed again: kopf never finds out which objects were deleted before
    that.
    """
    started: dict[str, float] = {}

    async def intercept(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
        path, watch = request.url.path, request.url.query.get("watch") == "true"
        if watch:
            await asyncio.sleep(started.get(path, 0.0) + MIN_WATCH_START_INTERVAL_SECONDS - time.monotonic())
            started[path] = time.monotonic()
        response = await handler(request)
        of_jobs = path.endswith(f"/{PLURAL}")
        if of_jobs:
            response = await _retry_fatal(request, handler, response)
        if response.status == 403:
            try:
                body = orjson.loads(await response.read())  # kept by the response for kopf, too
            except ValueError:
                return response
            permissions.refused(request.method, path, ApiError.from_status(403, body), watch=watch)
        elif response.ok:
            permissions.granted(request.method, path, watch=watch)
            if of_jobs and request.url.query.keys().isdisjoint(CONTINUATION_PARAMETERS):
                on_listed(path)
            if watch:
                response.content = cast("aiohttp.StreamReader", ValidatedWatchStream(response.content))
        return response

    return intercept


async def _retry_fatal(
    request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType, response: aiohttp.ClientResponse
) -> aiohttp.ClientResponse:
    """Repeat the request until kopf can handle the answer."""
    delays, failures = Backoff(cap=30.0), 0
    while response.status in FATAL_STATUSES:
        response.release()
        if "resourceVersion" in request.url.query:
            # A watch without a version starts with all existing objects. Our own next list finds what was deleted
            # meanwhile.
            request.url = request.url.without_query_params("resourceVersion")
        else:
            failures += 1
            await asyncio.sleep(delays(failures))
        response = await handler(request)
    return response


class ValidatedWatchStream:
    """The body of a watch up to the first malformed event, which is replaced by a request to list again."""

    def __init__(self, content: aiohttp.StreamReader) -> None:
        self._content = content

    def __getattr__(self, name: str) -> object:
        return getattr(self._content, name)

    async def iter_chunked(self, _: int) -> AsyncIterator[bytes]:
        """Yield whole lines. A partial line at the end of a broken stream is dropped."""
        async for line in read_lines(self._content):
            if not _is_valid_event(line):
                yield RELIST_EVENT
                return
            yield line + b"\n"


def _is_valid_event(line: bytes) -> bool:
    """Return whether this is an event about an object, or the one error that kopf survives."""
    try:
        event: Any = orjson.loads(line)
        if event["type"] == "ERROR":
            return bool(event["object"]["code"] == 410)
        metadata = event["object"]["metadata"]
        named = event["type"] == "BOOKMARK" or bool(metadata["uid"])
        return named and metadata["resourceVersion"].isdecimal()
    except (ValueError, TypeError, KeyError, AttributeError):
        return False
