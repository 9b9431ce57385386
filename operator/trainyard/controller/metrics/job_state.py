"""What state each job is in, and how often it began anew, as its status says it: for dashboards of one job."""

from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from trainyard.controller.reconcile.resources import JobRecord

JOB = ["namespace", "name"]


def state_metrics(records: Iterable[JobRecord]) -> Iterator[Metric]:
    """Five series for each job, and one more where it holds accelerators."""
    phase = GaugeMetricFamily("trainyard_job_phase", "1, under the phase that the job is in", labels=[*JOB, "phase"])
    attempt = GaugeMetricFamily("trainyard_job_attempt", "The number of the current attempt", labels=JOB)
    restarts = CounterMetricFamily(
        "trainyard_job_restarts",
        "Attempts of a job that ended before their time, hangs among the failures",
        labels=[*JOB, "cause"],
    )
    held = GaugeMetricFamily(
        "trainyard_job_accelerators",
        "GPUs and other accelerators that the pods of a job hold; of jobs that hold such alone",
        labels=JOB,
    )
    for record in records:
        if record.sort is None:
            continue
        who = [record.namespace, record.name]
        phase.add_metric([*who, record.sort[0]], 1)
        attempt.add_metric(who, record.attempt)
        counts = {
            "failure": record.restarts.failures,
            "disruption": record.restarts.disruptions,
            "resize": record.restarts.resizes,
        }
        for cause, count in counts.items():
            restarts.add_metric([*who, cause], count)
        if record.accelerators:
            held.add_metric(who, record.accelerators)
    yield from (phase, attempt, restarts, held)
