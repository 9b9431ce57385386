"""Prometheus metrics of the engine, under controller-runtime's names so that existing dashboards fit. Labels name no
objects.
"""

from collections.abc import Hashable
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from trainyard.engine.loop import ReconcileLoop
from trainyard.engine.observer import Observer, Result
from trainyard.engine.queue import WorkQueue

K = TypeVar("K", bound=Hashable)

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class EngineMetrics:
    """The metric families, registered once in the given registry.

    Create it first, pass `observer` to queue and loop and `on_request` to the session, then `watch` queue and loop.
    """

    def __init__(self, registry: CollectorRegistry, controller: str) -> None:
        self._controller = controller
        named, controlled = ("name",), ("controller",)
        self._depth = Gauge("workqueue_depth", "Keys that are ready and not taken", named, registry=registry)
        self._oldest = Gauge(
            "workqueue_oldest_item_seconds", "Seconds that the oldest key has been waiting", named, registry=registry
        )
        self._longest = Gauge(
            "workqueue_longest_running_processor_seconds",
            "Seconds that the slowest worker has been reconciling its key",
            named,
            registry=registry,
        )
        adds = Counter("workqueue_adds_total", "Keys added to the queue", named, registry=registry)
        retries = Counter("workqueue_retries_total", "Keys delayed after a failure", named, registry=registry)
        waits = Histogram(
            "workqueue_queue_duration_seconds",
            "Time from adding a key to taking it",
            named,
            registry=registry,
            buckets=_SECONDS,
        )
        works = Histogram(
            "workqueue_work_duration_seconds",
            "Time from taking a key to finishing it",
            named,
            registry=registry,
            buckets=_SECONDS,
        )
        self._active = Gauge(
            "controller_runtime_active_workers", "Workers that reconcile a key now", controlled, registry=registry
        )
        self._passes = Counter(
            "controller_runtime_reconcile_total",
            "Reconciles by result",
            ("controller", "result"),
            registry=registry,
        )
        self._errors = Counter(
            "controller_runtime_reconcile_errors_total", "Reconciles that failed", controlled, registry=registry
        )
        self._times = Histogram(
            "controller_runtime_reconcile_time_seconds",
            "Duration of a reconcile",
            controlled,
            registry=registry,
            buckets=_SECONDS,
        )
        self._requests = Counter(
            "rest_client_requests_total", "Requests to the API server", ("code", "method"), registry=registry
        )
        self._latencies = Histogram(
            "rest_client_request_duration_seconds",
            "Time from a request to its answer",
            ("method",),
            registry=registry,
            buckets=_SECONDS,
        )
        # Present from the start, so that a rate over them is right from the first failure on.
        for result in Result:
            self._passes.labels(controller, result)
        self._errors.labels(controller)
        self.observer = Observer(
            added=adds.labels(controller).inc,
            retried=retries.labels(controller).inc,
            taken=waits.labels(controller).observe,
            finished=works.labels(controller).observe,
            reconciled=self._record_reconcile,
        )

    def watch(self, queue: WorkQueue[K], loop: ReconcileLoop[K]) -> None:
        """Read the gauges from this queue and loop at each scrape."""
        self._depth.labels(self._controller).set_function(lambda: queue.depth)
        self._oldest.labels(self._controller).set_function(queue.longest_wait)
        self._longest.labels(self._controller).set_function(queue.longest_work)
        self._active.labels(self._controller).set_function(lambda: loop.active)

    def on_request(self, method: str, status: int, seconds: float) -> None:
        """Count a request that was answered, or not (status 0). The signature is `kube.session.RequestObserver`."""
        self._requests.labels(str(status) if status else "<error>", method).inc()
        self._latencies.labels(method).observe(seconds)

    def _record_reconcile(self, result: Result, seconds: float) -> None:
        self._passes.labels(self._controller, result).inc()
        self._times.labels(self._controller).observe(seconds)
        if result is Result.ERROR:
            self._errors.labels(self._controller).inc()
