"""The whole operator, kopf included, on a fake API server."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from prometheus_client import CollectorRegistry

from tests.support.fake_api import FakeApi
from tests.support.waiting import until
from trainyard.controller.operator import Operator
from trainyard.controller.resources import TRAINING_JOBS
from trainyard.controller.settings import Settings
from trainyard.engine.metrics import EngineMetrics
from trainyard.kube.resource import EVENTS, PODS, SERVICES, Resource

# kopf does not begin to watch before it has found this kind, though it never reads it.
NAMESPACES = Resource("", "v1", "namespaces", "Namespace")


@pytest.fixture
async def api() -> AsyncIterator[FakeApi]:
    async with FakeApi([TRAINING_JOBS, PODS, SERVICES, EVENTS, NAMESPACES]) as server:
        yield server


@asynccontextmanager
async def operator(api: FakeApi, ports: list[int] | None = None) -> AsyncIterator[Operator]:
    """An operator that has listed everything and goes when the test is through with it; `ports` gets its HTTP port."""
    registry = CollectorRegistry()
    metrics = EngineMetrics(registry, "trainingjob")
    chosen = Settings(http_port=0, http_host="127.0.0.1")
    made = Operator.assemble(chosen, api.session(on_request=metrics.on_request), metrics, registry)
    stop = asyncio.Event()
    task = asyncio.create_task(made.run(stop, (ports if ports is not None else []).append))
    try:
        await until(lambda: not made.health.waiting() or task.done())
        yield made
    finally:
        stop.set()
        await task
