"""`python -m trainyard.controller.metrics.reference [ROOT]`: ROOT/docs/reference/metrics.md, from the metrics that the operator registers."""

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path

from prometheus_client import CollectorRegistry

from trainyard.controller.bootstrap.operator import Operator
from trainyard.controller.bootstrap.settings import Settings
from trainyard.controller.reconcile import coordination
from trainyard.engine.queue_metrics import EngineMetrics
from trainyard.kube.session import Endpoint, Session

PAGE = "docs/reference/metrics.md"
HEAD = """<!-- Made by `make generate`; do not edit. -->

# Metrics

What the operator tells at `/metrics` (port `settings.httpPort`, 8080; Service `trainyard-metrics`, where the release is called trainyard). Each of its processes tells of itself; gauges of jobs and
pods are told by the one that acts, so that a sum over all counts each once. Where controller-runtime or client-go have a name for
something it has that name here, so that existing dashboards fit. `trainyard_job_*` bear a job's name: five series of its state, and some twenty for each job that tells its
steps, read from its [`status.goodput` and `status.progress`](trainingjob.md), which say what they mean and how exact they are. Those of the goodput are there as long as the job,
what is known of its progress until it has ended or is suspended, and speeds while it runs. [Alerts](../runbooks/README.md) are made of these. Beside these there are `process_*` and `python_*`, the client library's own.

| Metric | Type | Labels | What it is |
|---|---|---|---|
"""


def page() -> str:
    """The page, whole."""
    return asyncio.run(_page())


async def _page() -> str:
    rows: set[str] = set()
    # One that stands by tells of its election, one that acts of the jobs.
    for election in (True, False):
        registry = CollectorRegistry()
        metrics = EngineMetrics(registry, "trainingjob")
        settings = Settings(leader_election=election, coordinator_url=None)
        Operator.assemble(settings, Session(Endpoint(server="https://localhost")), metrics, registry)
        coordination.families(registry)
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
    """Write the page below ROOT, or below this folder."""
    (Path(*arguments[:1]) / PAGE).write_text(page())


if __name__ == "__main__":
    main(sys.argv[1:])
