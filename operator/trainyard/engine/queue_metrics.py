"""Prometheus figures of the engine, under controller-runtime's names so that existing dashboards fit. No object names in labels."""

from collections.abc import Hashable
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from trainyard.engine.loop import ReconcileLoop
from trainyard.engine.observer import Observer, Result
from trainyard.engine.queue import WorkQueue

K = TypeVar("K", bound=Hashable)

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class EngineMetrics:
    """The families, registered once in the registry that is passed in.

    Make it first, give `observer` to queue and loop and `on_request` to the session, then `watch` both.
    """

    def __init__(self, registry: CollectorRegistry, controller: str) -> None:
        self._controller = controller
        named, controlled = ("name",), ("controller",)
        self._depth = Gauge("workqueue_depth", "Keys ready and not taken", named, registry=registry)
        self._oldest = Gauge(
            "workqueue_oldest_item_seconds", "How long the first key has waited", named, registry=registry
        )
        self._longest = Gauge(
            "workqueue_longest_running_processor_seconds",
            "How long the slowest worker has been at work",
            named,
            registry=registry,
        )
        adds = Counter("workqueue_adds_total", "Keys added", named, registry=registry)
        retries = Counter("workqueue_retries_total", "Keys put off after a failure", named, registry=registry)
        waits = Histogram(
            "workqueue_queue_duration_seconds", "From added to taken", named, registry=registry, buckets=_SECONDS
        )
        works = Histogram(
            "workqueue_work_duration_seconds", "From taken to done", named, registry=registry, buckets=_SECONDS
        )
        self._active = Gauge("controller_runtime_active_workers", "Workers in a pass", controlled, registry=registry)
        self._passes = Counter(
            "controller_runtime_reconcile_total",
            "Passes by how they ended",
            ("controller", "result"),
            registry=registry,
        )
        self._errors = Counter(
            "controller_runtime_reconcile_errors_total", "Passes that failed", controlled, registry=registry
        )
        self._times = Histogram(
            "controller_runtime_reconcile_time_seconds",
            "Length of a pass",
            controlled,
            registry=registry,
            buckets=_SECONDS,
        )
        self._requests = Counter(
            "rest_client_requests_total", "Requests to the API server", ("code", "method"), registry=registry
        )
        self._latencies = Histogram(
            "rest_client_request_duration_seconds",
            "Time to the answer",
            ("method",),
            registry=registry,
            buckets=_SECONDS,
        )
        # From the start, so that a rate over them is right from the first failure on.
        for result in Result:
            self._passes.labels(controller, result)
        self._errors.labels(controller)
        self.observer = Observer(
            added=adds.labels(controller).inc,
            retried=retries.labels(controller).inc,
            took=waits.labels(controller).observe,
            finished=works.labels(controller).observe,
            passed=self._passed,
        )

    def watch(self, queue: WorkQueue[K], loop: ReconcileLoop[K]) -> None:
        """Read the gauges from these two whenever the metrics are scraped."""
        self._depth.labels(self._controller).set_function(lambda: queue.depth)
        self._oldest.labels(self._controller).set_function(queue.longest_wait)
        self._longest.labels(self._controller).set_function(queue.longest_work)
        self._active.labels(self._controller).set_function(lambda: loop.active)

    def on_request(self, method: str, status: int, seconds: float) -> None:
        """A request was answered, or not (status 0); the shape of `kube.session.RequestObserver`."""
        self._requests.labels(str(status) if status else "<error>", method).inc()
        self._latencies.labels(method).observe(seconds)

    def _passed(self, result: Result, seconds: float) -> None:
        self._passes.labels(self._controller, result).inc()
        self._times.labels(self._controller).observe(seconds)
        if result is Result.ERROR:
            self._errors.labels(self._controller).inc()
