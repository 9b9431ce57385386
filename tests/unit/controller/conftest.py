"""The whole operator, kopf included, on a fake API server."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from tests.support.fake_api import FakeApi
from tests.support.waiting import until
from trainyard.controller.bootstrap.assembly import assemble
from trainyard.controller.bootstrap.http_server import Ports
from trainyard.controller.bootstrap.operator import Operator
from trainyard.controller.bootstrap.settings import Settings
from trainyard.controller.kopf_adapter.shell import handle_signals
from trainyard.controller.reconcile.resources import TRAINING_JOBS
from trainyard.engine.queue_metrics import EngineMetrics
from trainyard.kube.resource import EVENTS, NODES, PODS, SERVICES, Resource
from trainyard.kube.session import Endpoint, Session

# kopf starts its watch only after it has found this kind, though it never reads it.
NAMESPACES = Resource("", "v1", "namespaces", "Namespace")


@pytest.fixture
async def api() -> AsyncIterator[FakeApi]:
    async with FakeApi([TRAINING_JOBS, PODS, SERVICES, EVENTS, NAMESPACES, NODES]) as server:
        yield server


@asynccontextmanager
async def operator(
    api: FakeApi,
    ports: list[Ports] | None = None,
    *,
    ready: bool = True,
    stop: asyncio.Event | None = None,
    **more: Any,
) -> AsyncIterator[Operator]:
    """Run an operator with synced caches until the test is done; `ports` gets its HTTP ports.

    It runs without leader election unless `more` settings enable it.
    """
    registry = CollectorRegistry()
    metrics = EngineMetrics(registry, "trainingjob")
    chosen = Settings(**{"http_port": 0, "health_port": 0, "http_host": "127.0.0.1", "leader_election": False, **more})
    made = assemble(chosen, api.session(on_request=metrics.on_request), metrics, registry)
    stop = stop if stop is not None else asyncio.Event()
    handle_signals(stop)
    task = asyncio.create_task(made.run(stop, (ports if ports is not None else []).append))
    try:
        await until(lambda: not (ready and made.health.obstacles()) or task.done())
        yield made
    finally:
        stop.set()
        await task


@asynccontextmanager
async def process(api: FakeApi, ports: list[Ports] | None = None, **more: Any) -> AsyncIterator[Operator]:
    """Run an operator in its own event loop, like a separate process: kopf cancels all younger tasks when it stops."""
    loop, stop, made = asyncio.new_event_loop(), asyncio.Event(), list[Operator]()
    chosen = Settings(**{"http_port": 0, "health_port": 0, "http_host": "127.0.0.1", **more})
    listening = (ports if ports is not None else []).append

    async def run() -> None:
        registry = CollectorRegistry()
        metrics = EngineMetrics(registry, "trainingjob")
        made.append(assemble(chosen, Session(Endpoint(server=api.url)), metrics, registry))
        await made[0].run(stop, listening)

    ended: list[Exception] = []

    def live() -> None:
        try:
            loop.run_until_complete(run())
        except Exception as error:  # noqa: BLE001 - raised below
            ended.append(error)
        finally:
            loop.close()

    thread = threading.Thread(target=live)
    thread.start()
    try:
        await until(lambda: ended or (made and not made[0].health.obstacles()))
        yield made[0]
    finally:
        if not ended:
            loop.call_soon_threadsafe(stop.set)
        await asyncio.to_thread(thread.join)
        for error in ended:
            raise error
