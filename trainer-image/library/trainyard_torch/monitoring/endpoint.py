"""A pod's Prometheus endpoint. The only module that imports prometheus_client, which is optional."""

from __future__ import annotations

import errno
import logging
from typing import TYPE_CHECKING

from trainyard_torch.monitoring.metrics import METRICS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from threading import Thread
    from typing import TypeAlias
    from wsgiref.simple_server import WSGIServer

    from prometheus_client.core import Metric as Family

    from trainyard_torch.monitoring.rank_metrics import RankMetrics

    Started: TypeAlias = tuple[WSGIServer, Thread] | None

logger = logging.getLogger(__name__)
PORT = "TRAINYARD_METRICS_PORT"


def configured_port(port: int | None, environ: Mapping[str, str]) -> int | None:
    """Return the configured port: the argument, else TRAINYARD_METRICS_PORT. None: no endpoint.

    Raises:
        ValueError: it is not a valid port.
    """
    if port is None:
        text = environ.get(PORT, "").strip()
        if not text:
            return None
        if not (text.isascii() and text.isdecimal() and len(text) < 6):
            raise ValueError(f"{PORT} must be a port from 1 to 65535, got {text!r}")
        port = int(text)
    if not 1 <= port <= 65535:
        raise ValueError(f"port must be from 1 to 65535, got {port}")
    return port


def serve(port: int, readings: Callable[[], Sequence[RankMetrics]]) -> Callable[[], None] | None:
    """Serve http://POD:port/metrics in a thread. If that fails, it is logged, and training continues.

    Args:
        port: the port.
        readings: returns the metrics of all ranks. That thread calls it for each request.

    Returns:
        A function that stops the server; None without a server.
    """
    try:
        from prometheus_client import CollectorRegistry, start_http_server  # noqa: PLC0415 - may be missing
    except ImportError:
        logger.warning(
            "no metrics on port %s: prometheus_client is not installed in this image; training continues", port
        )
        return None
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(readings))
    try:
        started = _started(lambda address: start_http_server(port, address, registry))
    except OSError as error:
        taken = error.errno == errno.EADDRINUSE
        why = f"the port is taken: set {PORT} to another one" if taken else error
        logger.warning("no metrics on port %s: %s; training continues", port, why)
        return None

    def end() -> None:
        # prometheus_client before 0.19 returns nothing to stop the server: it stops with the process.
        if started:
            server, thread = started
            server.shutdown()
            server.server_close()
            thread.join()

    return end


def _started(start: Callable[[str], Started]) -> Started:
    """A server for both address families, or for IPv4 if the machine has no IPv6. Raises OSError."""
    try:
        return start("::")
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise
        return start("0.0.0.0")  # noqa: S104 - Prometheus asks from elsewhere


class _Collector:
    def __init__(self, readings: Callable[[], Sequence[RankMetrics]]) -> None:
        self._readings = readings

    def collect(self) -> Iterator[Family]:
        """Return the metrics. The registry calls it for each request."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily  # noqa: PLC0415 - as above

        readings = self._readings()
        for metric in METRICS:
            kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
            family = kind(metric.name, metric.documentation, labels=metric.labels)
            for labels, value in metric.samples(readings):
                family.add_metric(labels, value)
            yield family

    def describe(self) -> list[Family]:
        """Return nothing: otherwise the registry would collect all values to learn their names."""
        return []
