import pytest
from prometheus_client import CollectorRegistry

from tests.support.timers import FakeTimers
from trainyard.engine.loop import ReconcileLoop
from trainyard.engine.queue import WorkQueue
from trainyard.engine.queue_metrics import EngineMetrics

NAME, CONTROLLER = {"name": "trainingjob"}, {"controller": "trainingjob"}


async def test_metric_families_of_a_controller(timers: FakeTimers) -> None:
    registry = CollectorRegistry()
    metrics = EngineMetrics(registry, "trainingjob")
    queue: WorkQueue[str] = WorkQueue(timers=timers, observer=metrics.observer)

    async def reconcile(key: str) -> None:
        assert registry.get_sample_value("controller_runtime_active_workers", CONTROLLER) == 1
        if key == "bad":
            raise ValueError(key)

    loop = ReconcileLoop(queue, reconcile, workers=8, observer=metrics.observer)
    metrics.watch(queue, loop)
    metrics.on_request("POST", 201, 0.1)
    metrics.on_request("GET", 0, 0.1)
    for key in ("good", "bad", "waiting"):
        queue.add(key)
    timers.advance(4)
    await loop.process_next()
    await loop.process_next()

    def value(family: str, **labels: str) -> float | None:
        return registry.get_sample_value(family, labels)

    assert value("workqueue_depth", **NAME) == 1
    assert value("workqueue_oldest_item_seconds", **NAME) == 4
    assert value("workqueue_adds_total", **NAME) == 3
    assert value("workqueue_retries_total", **NAME) == 1
    assert value("workqueue_queue_duration_seconds_sum", **NAME) == 8
    assert value("workqueue_work_duration_seconds_count", **NAME) == 2
    assert value("controller_runtime_reconcile_total", **CONTROLLER, result="success") == 1
    assert value("controller_runtime_reconcile_total", **CONTROLLER, result="error") == 1
    assert value("controller_runtime_reconcile_total", **CONTROLLER, result="requeue_after") == 0
    assert value("controller_runtime_reconcile_errors_total", **CONTROLLER) == 1
    assert value("controller_runtime_reconcile_time_seconds_count", **CONTROLLER) == 2
    assert value("controller_runtime_active_workers", **CONTROLLER) == 0
    assert value("rest_client_requests_total", code="201", method="POST") == 1
    assert value("rest_client_requests_total", code="<error>", method="GET") == 1
    assert value("rest_client_request_duration_seconds_count", method="GET") == 1


def test_registries_are_independent() -> None:
    EngineMetrics(CollectorRegistry(), "a")
    EngineMetrics(CollectorRegistry(), "a")
    registry = CollectorRegistry()
    EngineMetrics(registry, "a")
    with pytest.raises(ValueError, match="Duplicated"):
        EngineMetrics(registry, "a")
