"""With MONITORING=1: a Prometheus beside the demo's cluster, and where to look."""

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
LOOK = {
    "the last step that it was asked about": f'trainyard_job_step{{name="{JOB}"}}',
    "share of its time that counted": f'trainyard_job_goodput_ratio{{name="{JOB}"}}',
    "failures": f'trainyard_job_restarts_total{{name="{JOB}", cause="failure"}}',
}


def wished(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether the user wants it. Raises DemoError for a value that is neither yes nor no."""
    value = environ.get("MONITORING", "")
    if value not in {"", "0", "1"}:
        raise DemoError(f"MONITORING must be 1, or not be set, and is {value!r}")
    return value == "1"


def start(cluster: Cluster) -> None:
    """Prometheus, which scrapes the operator, workers and kubelets. Raises DemoError on another cluster than the demo's own."""
    if cluster.kubeconfig is None:
        raise DemoError(
            "MONITORING=1 is for the demo's own cluster: on another one leave it out, and let your Prometheus find the operator "
            "by metrics.serviceMonitor of the chart"
        )
    say("starting Prometheus (two minutes more the first time) …")
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
    """What it knows of the job, and where to look."""
    # What has happened at the very end is known from when it has asked once more.
    time.sleep(SCRAPE_SECONDS + 1)
    say(f"what Prometheus knows of {JOB}")
    for words, query in LOOK.items():
        found = _value(query)
        sys.stdout.write(f"  {words}: {'not told yet' if found is None else f'{found:g}'}    {query}\n")
    names = ", ".join(sorted(path.name for path in (ROOT / DASHBOARDS).iterdir()))
    sys.stdout.write(
        f"\nPrometheus is at {PROMETHEUS_URL} (its own page for queries: {PROMETHEUS_URL}/graph; the chart's alerts: {PROMETHEUS_URL}/alerts).\n"
        f"Grafana: add it as a data source, and import {names} from {DASHBOARDS}.\n"
    )


def _value(query: str) -> float | None:
    """The newest value of the last ten minutes: what a job tells of its progress goes with its end."""
    asked = urllib.parse.urlencode({"query": f"last_over_time({query}[10m])"})
    try:
        with urllib.request.urlopen(f"{PROMETHEUS_URL}/api/v1/query?{asked}", timeout=10) as answer:  # noqa: S310 - ours
            found = json.load(answer)["data"]["result"]
    except OSError as error:
        raise DemoError(f"Prometheus does not answer at {PROMETHEUS_URL}: {error}") from error
    return float(found[0]["value"][1]) if found else None
