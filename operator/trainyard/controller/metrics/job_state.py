"""Collect the phase, attempt and restarts of each job from its status, for dashboards of one job."""

from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from trainyard.controller.reconcile.resources import JobRecord

JOB = ["namespace", "name"]


def state_metrics(records: Iterable[JobRecord]) -> Iterator[Metric]:
    """Yield five series for each job, one more if it holds accelerators, and three for each role if it has other roles than workers."""
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
    by_role = [*JOB, "role"]
    members = GaugeMetricFamily(
        "trainyard_job_role_replicas",
        "Desired members of a role; only for jobs that have other roles than workers",
        labels=by_role,
    )
    ready = GaugeMetricFamily(
        "trainyard_job_role_ready_replicas",
        "Members of a role that are ready or have succeeded; only for jobs that have other roles than workers",
        labels=by_role,
    )
    alone = CounterMetricFamily(
        "trainyard_job_role_container_restarts",
        "Restarts of containers while the group went on; only for jobs that have other roles than workers",
        labels=by_role,
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
        for role in record.roles:
            members.add_metric([*job_labels, role.name], role.replicas)
            ready.add_metric([*job_labels, role.name], role.ready_replicas)
            alone.add_metric([*job_labels, role.name], role.restarts)
    yield from (phase, attempt, restarts, accelerators, members, ready, alone)
