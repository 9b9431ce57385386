"""Between kopf and the API server. What kopf takes for the end of all things, it does not get to see: the operator would end with it."""

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

FATAL: Final = frozenset({400, 404, 410})
"""Answers that kopf does not try again. The CRD may come back, and so may the server's memory."""
GOES_ON: Final = frozenset({"resourceVersion", "continue"})
"""The parameters of a watch, or of a further page of a list, that takes up where another one ended."""
SHORTEST_SECONDS: Final = 1.0
"""Between the beginnings of two watches: kopf begins one anew at once, however soon the last one has ended."""
LIST_ANEW: Final = b'{"type":"ERROR","object":{"code":410}}\n'
"""The only error in a stream that kopf survives."""


def guard(permissions: PermissionTracker, listed: Callable[[str], object]) -> aiohttp.ClientMiddlewareType:
    """A middleware for kopf's client. `permissions` records whether kopf may list and watch: it tries again for ever and tells only the log.

    `listed` is called with the path where kopf has begun anew: it then knows what there is, and never finds out what was deleted
    meanwhile.
    """
    begun: dict[str, float] = {}

    async def keep(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
        path, watch = request.url.path, request.url.query.get("watch") == "true"
        if watch:
            await asyncio.sleep(begun.get(path, 0.0) + SHORTEST_SECONDS - time.monotonic())
            begun[path] = time.monotonic()
        response = await handler(request)
        of_jobs = path.endswith(f"/{PLURAL}")
        if of_jobs:
            response = await _insist(request, handler, response)
        if response.status == 403:
            try:
                body = orjson.loads(await response.read())  # kept by the response for kopf, too
            except ValueError:
                return response
            permissions.refused(request.method, path, ApiError.from_status(403, body), watch=watch)
        elif response.ok:
            permissions.granted(request.method, path, watch=watch)
            if of_jobs and request.url.query.keys().isdisjoint(GOES_ON):
                listed(path)
            if watch:
                response.content = cast("aiohttp.StreamReader", SoundEvents(response.content))
        return response

    return keep


async def _insist(
    request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType, response: aiohttp.ClientResponse
) -> aiohttp.ClientResponse:
    """Ask until the answer is one that kopf knows what to do with."""
    delays, failures = Backoff(cap=30.0), 0
    while response.status in FATAL:
        response.release()
        if "resourceVersion" in request.url.query:
            # Without a version a watch begins with all objects that there are, and what was deleted meanwhile is found by the
            # next list of our own.
            request.url = request.url.without_query_params("resourceVersion")
        else:
            failures += 1
            await asyncio.sleep(delays(failures))
        response = await handler(request)
    return response


class SoundEvents:
    """The body of a watch, as far as it makes sense. From there on kopf is told to list anew."""

    def __init__(self, content: aiohttp.StreamReader) -> None:
        self._content = content

    def __getattr__(self, name: str) -> object:
        return getattr(self._content, name)

    async def iter_chunked(self, _: int) -> AsyncIterator[bytes]:
        """What kopf reads: whole lines. The torso of one, before the end of a broken stream, is none."""
        async for line in read_lines(self._content):
            if not _is_sound(line):
                yield LIST_ANEW
                return
            yield line + b"\n"


def _is_sound(line: bytes) -> bool:
    """Whether this is an event about an object, or the one error that is none of kopf's worries."""
    try:
        event: Any = orjson.loads(line)
        if event["type"] == "ERROR":
            return bool(event["object"]["code"] == 410)
        metadata = event["object"]["metadata"]
        named = event["type"] == "BOOKMARK" or bool(metadata["uid"])
        return named and metadata["resourceVersion"].isdecimal()
    except (ValueError, TypeError, KeyError, AttributeError):
        return False
