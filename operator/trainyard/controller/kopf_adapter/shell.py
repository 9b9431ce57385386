"""kopf as the shell: process, signals, login and the watch on TrainingJobs. Nothing of kopf's that writes to the cluster.

Only `on.event`: kopf's change handlers, timers, daemons and finalizers write annotations and patches of their own, and
its indexes neither forget what vanishes during a gap nor start in linear time. `docs/design/0001-kopf-as-the-shell.md`.
"""

import asyncio
import signal
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack
from itertools import count
from typing import Any, cast

import aiohttp
import kopf
from typing_extensions import override

from trainyard.api.constants import GROUP, PLURAL, VERSION
from trainyard.kube.backoff import Backoff
from trainyard.kube.session import Endpoint

Heard = Callable[[str | None, Mapping[str, Any]], None]


class NoDiffBase(kopf.DiffBaseStorage):
    """No memory of what was last handled: it would copy each object several times an event."""

    @override
    def build(self, *, body: Any, extra_fields: Any = None) -> Any:
        return {}

    @override
    def fetch(self, *, body: Any) -> None:
        return None

    @override
    def store(self, *, body: Any, patch: Any, essence: Any) -> None: ...


class NoProgress(kopf.ProgressStorage):
    """No memory of handlers' progress: there is none."""

    @override
    def fetch(self, *, key: Any, body: Any) -> None:
        return None

    @override
    def store(self, *, key: Any, record: Any, body: Any, patch: Any) -> None: ...

    @override
    def purge(self, *, key: Any, body: Any, patch: Any) -> None: ...

    @override
    def touch(self, *, body: Any, patch: Any, value: Any) -> None: ...

    @override
    def clear(self, *, essence: Any) -> Any:
        return essence


class Endless(Iterable[float]):
    """Back-offs without an end: where they run out kopf gives up, and with it the whole operator."""

    @override
    def __iter__(self) -> Iterator[float]:
        return map(Backoff(cap=30.0), count(1))


def hear_signals(stop: asyncio.Event) -> None:
    """Let SIGTERM and Ctrl-C set `stop`."""
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)


def registry(
    endpoint: Endpoint,
    heard: Heard,
    guard: aiohttp.ClientMiddlewareType,
    stop: asyncio.Event,
    leaving: asyncio.Event,
    clients: AsyncExitStack,
) -> kopf.OperatorRegistry:
    """Kopf's handlers: the login, one ear, and a last word. `guard` sees its requests, `clients` closes what the logins open."""
    handlers = kopf.OperatorRegistry()

    @kopf.on.login(registry=handlers)
    async def login(**_: Any) -> kopf.AiohttpSession:
        # kopf takes the signals when it begins, in this very turn of the loop. Back with them in the next: kopf would stop itself
        # first, and then what writes.
        asyncio.get_running_loop().call_soon(hear_signals, stop)
        client = endpoint.open_client(guard)
        # kopf closes it too, unless it is cancelled on its own way out.
        clients.push_async_callback(client.close)
        return kopf.AiohttpSession(aiohttp_session=client, server=endpoint.server)

    @kopf.on.event(GROUP, VERSION, PLURAL, registry=handlers)
    async def on_event(event: Mapping[str, Any], **_: Any) -> None:
        heard(event["type"], event["object"])

    @kopf.on.cleanup(registry=handlers)
    async def on_cleanup(**_: Any) -> None:
        leaving.set()

    return handlers


def settings() -> kopf.OperatorSettings:
    """Kopf's settings."""
    chosen = kopf.OperatorSettings()
    chosen.peering.standalone = True
    chosen.scanning.disabled = True
    chosen.posting.enabled = False
    chosen.persistence.diffbase_storage = NoDiffBase()
    chosen.persistence.progress_storage = NoProgress()
    chosen.persistence.finalizer = f"{GROUP}/unused"
    chosen.networking.error_backoffs = Endless()
    chosen.networking.request_timeout = 30
    chosen.networking.connect_timeout = 10
    chosen.networking.enforce_retry_after = True
    # A task for each job waits so long for its next event: five seconds are a thousand tasks where many jobs start.
    chosen.queueing.idle_timeout = 0.5
    chosen.watching.chunk_size = 500
    chosen.watching.server_timeout = 290
    chosen.process.ultimate_exiting_timeout = 30
    return chosen


async def run(
    endpoint: Endpoint,
    heard: Heard,
    *,
    guard: aiohttp.ClientMiddlewareType,
    namespaces: Collection[str],
    instance: str,
    stop: asyncio.Event,
    leaving: asyncio.Event,
) -> None:
    """Run kopf, on these namespaces or (none given) on all, until `stop` is set. It sets `leaving` as soon as it is on its way out.

    `guard` stands between it and the API server.
    """
    async with AsyncExitStack() as clients:
        await kopf.operator(
            registry=registry(endpoint, heard, guard, stop, leaving, clients),
            settings=settings(),
            clusterwide=not namespaces,
            namespaces=namespaces,
            standalone=True,
            # Left to itself kopf looks up its user's name, which an arbitrary UID in a container does not have.
            identity=cast("Any", instance),
            stop_flag=stop,
        )
