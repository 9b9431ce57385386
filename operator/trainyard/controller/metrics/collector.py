"""Collect metrics of jobs. Label values are small, closed sets; only series of one job bear its name, and vanish with
it.
"""

from collections import Counter as Tally
from collections.abc import Callable, Iterator, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from typing_extensions import override

from trainyard.api.progress import LostSeconds
from trainyard.api.recovery import RestartScope
from trainyard.api.spec import Framework
from trainyard.api.status import Avoidance, ConditionType, Phase, TrainingJobStatus
from trainyard.controller.metrics.durations import Durations, restart_scope_of
from trainyard.controller.metrics.job_progress import IDLE_PHASES, progress_metrics
from trainyard.controller.metrics.job_state import state_metrics
from trainyard.controller.reconcile.caches import Caches
from trainyard.controller.reconcile.resources import JobRecord
from trainyard.domain.state.snapshot import JobView
from trainyard.kube.clock import ServerClock

MAX_NODES = 100
"""Nodes that have a series."""


class JobMetrics:
    """Counters of changes of jobs, as this process stored them."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._restarts = Counter("trainyard_restarts", "Restarts of jobs by cause", ["cause"], registry=registry)
        self._finished = Counter(
            "trainyard_jobs_finished", "Finished jobs by result and reason", ["result", "reason"], registry=registry
        )
        self._recoveries = Counter(
            "trainyard_recoveries",
            "Restarts of jobs by restart scope",
            ["scope"],
            registry=registry,
        )
        for scope in RestartScope:
            self._recoveries.labels(scope)
        for cause in ("failure", "hang", "disruption", "resize"):
            self._restarts.labels(cause)
        self._durations = Durations(registry)

    def status_changed(self, job: JobView, status: TrainingJobStatus) -> None:
        """Count the change from the job's status to `status`."""
        self._durations.status_changed(job, status)
        before, after = job.status.restarts, status.restarts
        hangs = (after.hangs or 0) - (before.hangs or 0)
        self._restarts.labels("hang").inc(hangs)
        # A status that was set by hand to its largest number counts no further.
        self._restarts.labels("failure").inc(max(0, after.failures - before.failures - hangs))
        self._restarts.labels("disruption").inc(after.disruptions - before.disruptions)
        self._restarts.labels("resize").inc(after.resizes - before.resizes)
        if status.attempt > job.status.attempt and status.phase is Phase.RESTARTING:
            self._recoveries.labels(restart_scope_of(status)).inc()
        if status.finished and not job.status.finished:
            kind = ConditionType.COMPLETE if status.holds(ConditionType.COMPLETE) else ConditionType.FAILED
            condition = status.condition(kind)
            self._finished.labels(kind.lower(), condition.reason if condition else "").inc()


class CacheMetrics(Collector):
    """Gauges that are computed at each scrape, by the leader only. A sum over all processes thus counts each job once."""

    def __init__(self, caches: Caches, registry: CollectorRegistry, leading: Callable[[], bool]) -> None:
        self._caches = caches
        self._leading = leading
        registry.register(self)

    @override
    def collect(self) -> Iterator[Metric]:
        """Yield the jobs by phase and framework, their pods and their goodput; nothing on a standby."""
        if not self._leading():
            return
        jobs = GaugeMetricFamily("trainyard_jobs", "Existing TrainingJobs", labels=["phase", "framework"])
        records = self._caches.jobs()
        tally = Tally(record.category for record in records)
        for phase in Phase:
            for framework in Framework:
                jobs.add_metric([phase, framework], tally[phase, framework])
        yield jobs
        pods = sum(len(cache.pods) for cache in self._caches.by_namespace.values())
        yield GaugeMetricFamily("trainyard_worker_pods", "Existing pods of TrainingJobs", value=pods)
        yield from self._trouble(records)
        yield _failures_by_node(records)
        yield GaugeMetricFamily(
            "trainyard_invalid_jobs", "TrainingJobs that the operator cannot read", value=tally[None]
        )
        yield from state_metrics(records)
        yield from self._goodput(records)
        yield from progress_metrics(records)

    def _trouble(self, records: Sequence[JobRecord]) -> Iterator[Metric]:
        """Yield stragglers, avoided nodes and suspected hangs of each job that has any."""
        job = ["namespace", "name"]
        straggling = GaugeMetricFamily(
            "trainyard_job_straggling_ranks",
            "Straggling ranks; only for jobs that have any",
            labels=job,
        )
        avoided = GaugeMetricFamily(
            "trainyard_job_avoided_nodes",
            "Suspect nodes that the workers of a job avoid; only for unfinished jobs that have any",
            labels=job,
        )
        suspected = GaugeMetricFamily(
            "trainyard_job_hang_suspected",
            "1 for a job of which no rank does anything; only for jobs that report no progress",
            labels=job,
        )
        for record in records:
            if record.hang_suspected:
                suspected.add_metric([record.namespace, record.name], 1)
            if record.straggling_ranks:
                straggling.add_metric([record.namespace, record.name], record.straggling_ranks)
            nodes = sum(node.avoidance is not Avoidance.NONE for node in record.suspect_nodes)
            if nodes and record.category and record.category[0] not in IDLE_PHASES:
                avoided.add_metric([record.namespace, record.name], nodes)
        yield from (straggling, avoided, suspected)

    def _goodput(self, records: Sequence[JobRecord]) -> Iterator[Metric]:
        """Yield the goodput of each job that reports steps, from its status."""
        job = ["namespace", "name"]
        ratio = GaugeMetricFamily(
            "trainyard_job_goodput_ratio", "Share of a job's active time that produced steps that were kept", labels=job
        )
        productive = CounterMetricFamily(
            "trainyard_job_productive_seconds", "Active time of a job that produced steps that were kept", labels=job
        )
        lost = CounterMetricFamily(
            "trainyard_job_lost_seconds",
            "Active time of a job that produced no kept step, by reason",
            labels=[*job, "reason"],
        )
        for record in records:
            if (goodput := record.goodput) is None:
                continue
            job_labels = [record.namespace, record.name]
            if goodput.ratio is not None:
                ratio.add_metric(job_labels, goodput.ratio)
            productive.add_metric(job_labels, goodput.productive_seconds)
            for reason in LostSeconds.model_fields:
                lost.add_metric([*job_labels, reason], getattr(goodput.lost_seconds, reason))
        yield from (ratio, productive, lost)


def _failures_by_node(records: Sequence[JobRecord]) -> Metric:
    """Return the attempts that each node ended, in finished jobs too."""
    family = GaugeMetricFamily(
        "trainyard_node_failures",
        f"Attempts that a node ended, in all jobs that list it in status.suspectNodes; of the {MAX_NODES} nodes with the most",
        labels=["node"],
    )
    tally: Tally[str] = Tally()
    for record in records:
        tally.update({node.name: node.failures for node in record.suspect_nodes})
    for node, failures in tally.most_common(MAX_NODES):
        family.add_metric([node], failures)
    return family


def register_clock_offset(clock: ServerClock, registry: CollectorRegistry) -> None:
    """Register the offset between this machine's clock and the API server's, in every process."""
    gauge = Gauge(
        "trainyard_clock_offset_seconds",
        "Seconds by which the API server's clock, which the operator uses, is ahead of its machine's",
        registry=registry,
    )
    gauge.set_function(lambda: clock.offset)
