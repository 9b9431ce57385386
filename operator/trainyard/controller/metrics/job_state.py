"""Collect the phase, attempt and restarts of each job from its status, for dashboards of one job."""

from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from trainyard.controller.reconcile.resources import JobRecord

JOB = ["namespace", "name"]


def state_metrics(records: Iterable[JobRecord]) -> Iterator[Metric]:
    """Yield five series for each job, and one more if it holds accelerators."""
    phase = GaugeMetricFamily("trainyard_job_phase", "1 for the phase of the job", labels=[*JOB, "phase"])
    attempt = GaugeMetricFamily("trainyard_job_attempt", "Number of the current attempt", labels=JOB)
    restarts = CounterMetricFamily(
        "trainyard_job_restarts",
        "Restarts of a job by cause; hangs count as failures",
        labels=[*JOB, "cause"],
    )
    accelerators = GaugeMetricFamily(
        "trainyard_job_accelerators",
        "GPUs and other accelerators that the pods of a job hold; only for jobs that request any",
        labels=JOB,
    )
    for record in records:
        if record.category is None:
            continue
        job_labels = [record.namespace, record.name]
        phase.add_metric([*job_labels, record.category[0]], 1)
        attempt.add_metric(job_labels, record.attempt)
        counts = {
            "failure": record.restarts.failures,
            "disruption": record.restarts.disruptions,
            "resize": record.restarts.resizes,
        }
        for cause, count in counts.items():
            restarts.add_metric([*job_labels, cause], count)
        if record.accelerators:
            accelerators.add_metric(job_labels, record.accelerators)
    yield from (phase, attempt, restarts, accelerators)
