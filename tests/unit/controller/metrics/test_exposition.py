"""The text of /metrics is rendered at most once a second, and shared."""

import asyncio
import threading
from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from typing_extensions import override

from trainyard.controller.metrics.exposition import Exposition


class Counting(Collector):
    """Counts the collections, and remembers their threads."""

    def __init__(self) -> None:
        self.threads: list[threading.Thread] = []

    @override
    def collect(self) -> Iterator[Metric]:
        self.threads.append(threading.current_thread())
        yield GaugeMetricFamily("collections", "How often", value=len(self.threads))


async def test_text_is_shared_for_a_second() -> None:
    counting, registry, now = Counting(), CollectorRegistry(auto_describe=False), [100.0]
    registry.register(counting)
    exposition = Exposition(registry, lambda: now[0])
    before = len(counting.threads)
    texts = await asyncio.gather(*(exposition.read() for _ in range(600)))
    assert len(counting.threads) - before == 1
    assert len({id(text) for text in texts}) == 1
    now[0] += 0.99
    assert await exposition.read() is texts[0]
    now[0] += 0.01
    assert b"collections 2.0" in await exposition.read()


async def test_caches_are_read_in_the_event_loop() -> None:
    counting, registry = Counting(), CollectorRegistry(auto_describe=False)
    registry.register(counting)
    await Exposition(registry).read()
    assert counting.threads == [threading.current_thread()]


async def test_caller_that_gives_up_disturbs_no_other() -> None:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Counting())
    exposition = Exposition(registry)
    first, second = (asyncio.create_task(exposition.read()) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    assert b"collections 1.0" in await second
