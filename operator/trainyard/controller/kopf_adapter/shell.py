"""Run kopf as the shell: signals, login and the watch on TrainingJobs. No feature of kopf that writes to the cluster.

Only `on.event` is used. kopf's change handlers, timers, daemons and finalizers write annotations and patches. Its
indexes neither forget objects that vanish during a gap nor start in linear time. See
`docs/design/0001-kopf-as-the-shell.md`.
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
from trainyard.controller.reconcile.resources import PAGE_JOBS
from trainyard.kube.backoff import Backoff
from trainyard.kube.session import Endpoint

EventHandler = Callable[[str | None, Mapping[str, Any]], None]


class NoDiffBase(kopf.DiffBaseStorage):
    """Stores no last-handled state: kopf would copy each object several times per event."""

    @override
    def build(self, *, body: Any, extra_fields: Any = None) -> Any:
        return {}

    @override
    def fetch(self, *, body: Any) -> None:
        return None

    @override
    def store(self, *, body: Any, patch: Any, essence: Any) -> None: ...


class NoProgress(kopf.ProgressStorage):
    """Stores no progress of handlers: there is none."""

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


class EndlessBackoffs(Iterable[float]):
    """Back-offs without an end: kopf stops when they are used up, and the operator with it."""

    @override
    def __iter__(self) -> Iterator[float]:
        return map(Backoff(cap=30.0), count(1))


def handle_signals(stop: asyncio.Event) -> None:
    """Make SIGTERM and Ctrl-C set `stop`."""
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)


def registry(
    endpoint: Endpoint,
    on_event: EventHandler,
    guard: aiohttp.ClientMiddlewareType,
    stop: asyncio.Event,
    leaving: asyncio.Event,
    clients: AsyncExitStack,
) -> kopf.OperatorRegistry:
    """Return kopf's handlers: login, events, and cleanup. `guard` sees its requests, `clients` closes the clients of
    its logins.
    """
    handlers = kopf.OperatorRegistry()

    @kopf.on.login(registry=handlers)
    async def login(**_: Any) -> kopf.AiohttpSession:
        # kopf installs its signal handlers when it starts, in this turn of the loop. Ours replace them in the next:
        # kopf would stop itself first, and only then the components that write.
        asyncio.get_running_loop().call_soon(handle_signals, stop)
        client = endpoint.open_client(guard)
        # kopf closes it too, unless it is cancelled while it stops.
        clients.push_async_callback(client.close)
        return kopf.AiohttpSession(aiohttp_session=client, server=endpoint.server)

    @kopf.on.event(GROUP, VERSION, PLURAL, registry=handlers)
    async def handle_event(event: Mapping[str, Any], **_: Any) -> None:
        on_event(event["type"], event["object"])

    @kopf.on.cleanup(registry=handlers)
    async def handle_cleanup(**_: Any) -> None:
        leaving.set()

    return handlers


def settings() -> kopf.OperatorSettings:
    """Return kopf's settings."""
    configured = kopf.OperatorSettings()
    configured.peering.standalone = True
    configured.scanning.disabled = True
    configured.posting.enabled = False
    configured.persistence.diffbase_storage = NoDiffBase()
    configured.persistence.progress_storage = NoProgress()
    configured.persistence.finalizer = f"{GROUP}/unused"
    configured.networking.error_backoffs = EndlessBackoffs()
    configured.networking.request_timeout = 30
    configured.networking.connect_timeout = 10
    configured.networking.enforce_retry_after = True
    # How long the task of one job waits for its next event: five seconds are a thousand tasks when many jobs start.
    configured.queueing.idle_timeout = 0.5
    configured.watching.chunk_size = PAGE_JOBS
    configured.watching.server_timeout = 290
    configured.process.ultimate_exiting_timeout = 30
    return configured


async def run(
    endpoint: Endpoint,
    on_event: EventHandler,
    *,
    guard: aiohttp.ClientMiddlewareType,
    namespaces: Collection[str],
    instance: str,
    stop: asyncio.Event,
    leaving: asyncio.Event,
) -> None:
    """Run kopf on these namespaces, or on all if none is given, until `stop` is set. Sets `leaving` as soon as it
    stops.

    All of its requests pass through `guard`.
    """
    async with AsyncExitStack() as clients:
        await kopf.operator(
            registry=registry(endpoint, on_event, guard, stop, leaving, clients),
            settings=settings(),
            clusterwide=not namespaces,
            namespaces=namespaces,
            standalone=True,
            # Without an identity kopf looks up its user's name, which an arbitrary UID in a container does not have.
            identity=cast("Any", instance),
            stop_flag=stop,
        )
