"""Start Prometheus for the demo cluster (MONITORING=1), and print what it has scraped."""

import json
import os
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Mapping

from dev.demo.commands import Cluster, DemoError, say, show
from dev.demo.run import JOB
from dev.demo.target import ROOT, python
from dev.localcluster.addresses import PROMETHEUS_URL
from dev.localcluster.monitoring import SCRAPE_SECONDS

FILES = "helm/trainyard/files"
DASHBOARDS = f"{FILES}/dashboards"
QUERIES = {
    "last scraped step": f'trainyard_job_step{{name="{JOB}"}}',
    "goodput ratio": f'trainyard_job_goodput_ratio{{name="{JOB}"}}',
    "restarts after failures": f'trainyard_job_restarts_total{{name="{JOB}", cause="failure"}}',
}


def requested(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether the user requests monitoring. Raises DemoError for a value other than 0 and 1."""
    value = environ.get("MONITORING", "")
    if value not in {"", "0", "1"}:
        raise DemoError(f"MONITORING is {value!r}: set it to 1, or leave it unset")
    return value == "1"


def start(cluster: Cluster) -> None:
    """Start a Prometheus that scrapes the operator, the workers and the kubelets.

    Raises:
        DemoError: the cluster was not created by the demo.
    """
    if cluster.kubeconfig is None:
        raise DemoError(
            "MONITORING=1 works only on the cluster that the demo creates: on another cluster, leave it unset and enable "
            "the chart value metrics.serviceMonitor for your own Prometheus"
        )
    say("starting Prometheus (the first start takes about 2 minutes longer) …")
    show(
        [
            *python("dev.localcluster"),
            "monitoring",
            "--only",
            "prometheus",
            "--rules",
            str(ROOT / FILES / "alerts.yaml"),
        ]
    )


def closing() -> None:
    """Print what Prometheus has scraped about the job, and the addresses of its pages."""
    # Prometheus knows the job's final state only after one more scrape.
    time.sleep(SCRAPE_SECONDS + 1)
    say(f"metrics of {JOB} in Prometheus:")
    for title, query in QUERIES.items():
        found = _value(query)
        sys.stdout.write(f"  {title}: {'no data yet' if found is None else f'{found:g}'}    {query}\n")
    names = ", ".join(sorted(path.name for path in (ROOT / DASHBOARDS).iterdir()))
    sys.stdout.write(
        f"\nPrometheus: {PROMETHEUS_URL} (queries: {PROMETHEUS_URL}/graph, alerts of the chart: {PROMETHEUS_URL}/alerts).\n"
        f"Grafana: add this Prometheus as a data source, and import {names} from {DASHBOARDS}.\n"
    )


def _value(query: str) -> float | None:
    """Return the newest value of the last ten minutes; progress metrics disappear when the job finishes."""
    parameters = urllib.parse.urlencode({"query": f"last_over_time({query}[10m])"})
    try:
        with urllib.request.urlopen(f"{PROMETHEUS_URL}/api/v1/query?{parameters}", timeout=10) as response:  # noqa: S310 - ours
            found = json.load(response)["data"]["result"]
    except OSError as error:
        raise DemoError(f"Prometheus does not respond at {PROMETHEUS_URL}: {error}") from error
    return float(found[0]["value"][1]) if found else None
