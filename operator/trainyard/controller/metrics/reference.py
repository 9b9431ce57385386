"""`python -m trainyard.controller.metrics.reference [ROOT]` writes ROOT/docs/reference/metrics.md from the registered
metrics.
"""

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path

from prometheus_client import CollectorRegistry

from trainyard.controller.bootstrap.assembly import assemble
from trainyard.controller.bootstrap.certificate_source import register_certificate_metrics
from trainyard.controller.bootstrap.settings import Settings
from trainyard.controller.metrics.memory_limit import register_memory_limit
from trainyard.controller.reconcile import coordination
from trainyard.engine.queue_metrics import EngineMetrics
from trainyard.kube.session import Endpoint, Session

PAGE = "docs/reference/metrics.md"
HEAD = """<!-- Made by `make generate`; do not edit. -->

# Metrics

The operator exports these metrics at `/metrics` (port `settings.httpPort`, 8080; Service
`trainyard-metrics` for a release called trainyard). Each process exports its own; only the leader
exports gauges of jobs and pods, so a sum over all processes counts each once. Where
controller-runtime or client-go have a metric for something, it has the same name here, so that
existing dashboards work.

`trainyard_job_*` have the labels of one job: five series of its state, and about twenty for each
job that reports steps. They repeat [`status.goodput` and `status.progress`](trainingjob.md), where
their meaning and accuracy are documented. Goodput exists as long as the job. Progress exists until
the job finishes or is suspended, and speeds only while it runs.

[Alerts](../runbooks/README.md) are based on these metrics. The client library adds `process_*` and
`python_*`.

| Metric | Type | Labels | Meaning |
|---|---|---|---|
"""


def page() -> str:
    """Return the whole page."""
    return asyncio.run(_page())


async def _page() -> str:
    rows: set[str] = set()
    # A standby registers its election, a leader the jobs.
    for election in (True, False):
        registry = CollectorRegistry()
        metrics = EngineMetrics(registry, "trainingjob")
        settings = Settings(leader_election=election, coordinator_url=None)
        assemble(settings, Session(Endpoint(server="https://localhost")), metrics, registry)
        coordination.register_metrics(registry)
        register_certificate_metrics(registry)
        register_memory_limit(registry)
        rows.update(_rows(registry))
    return HEAD + "".join(sorted(rows))


def _rows(registry: CollectorRegistry) -> Iterator[str]:
    for collector in [*registry._collector_to_names]:  # noqa: SLF001 - the library has no other way to ask for labels
        for family in collector.collect():
            labels = getattr(collector, "_labelnames", None) or getattr(family, "_labelnames", None)
            named = ", ".join(f"`{label}`" for label in labels or ())
            name = f"{family.name}_total" if family.type == "counter" else family.name
            yield f"| `{name}` | {family.type} | {named} | {family.documentation}. |\n"


def main(arguments: list[str]) -> None:
    """Write the page below ROOT, or below the current folder."""
    (Path(*arguments[:1]) / PAGE).write_text(page())


if __name__ == "__main__":
    main(sys.argv[1:])
