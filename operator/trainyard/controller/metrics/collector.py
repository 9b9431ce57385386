"""What the operator tells of jobs. Labels are small, closed sets; a job's name stands only in what is told of that job, and goes with it."""

from collections import Counter as Tally
from collections.abc import Callable, Iterator, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from typing_extensions import override

from trainyard.api.progress import LostSeconds
from trainyard.api.recovery import RestartScope
from trainyard.api.spec import Framework
from trainyard.api.status import ConditionType, Phase, TrainingJobStatus
from trainyard.controller.metrics.durations import Durations, rung_of
from trainyard.controller.metrics.job_progress import IDLE, progress_metrics
from trainyard.controller.metrics.job_state import state_metrics
from trainyard.controller.reconcile.caches import Caches
from trainyard.controller.reconcile.resources import JobRecord
from trainyard.domain.state.snapshot import JobView
from trainyard.kube.clock import ServerClock


class JobMetrics:
    """Counters of what happened to jobs, as this process saw it."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._restarts = Counter(
            "trainyard_restarts", "Attempts that ended before their time", ["cause"], registry=registry
        )
        self._finished = Counter(
            "trainyard_jobs_finished", "Jobs that came to their end", ["result", "reason"], registry=registry
        )
        self._recoveries = Counter(
            "trainyard_recoveries",
            "Attempts after the first of a job, by the means by which they began",
            ["scope"],
            registry=registry,
        )
        for scope in RestartScope:
            self._recoveries.labels(scope)
        for cause in ("failure", "hang", "disruption", "resize"):
            self._restarts.labels(cause)
        self._durations = Durations(registry)

    def moved(self, job: JobView, status: TrainingJobStatus) -> None:
        """The job went from the status it had to `status`."""
        self._durations.moved(job, status)
        before, after = job.status.restarts, status.restarts
        hangs = (after.hangs or 0) - (before.hangs or 0)
        self._restarts.labels("hang").inc(hangs)
        # A status that was set by hand to all that there can be counts no further.
        self._restarts.labels("failure").inc(max(0, after.failures - before.failures - hangs))
        self._restarts.labels("disruption").inc(after.disruptions - before.disruptions)
        self._restarts.labels("resize").inc(after.resizes - before.resizes)
        if status.attempt > job.status.attempt and status.phase is Phase.RESTARTING:
            self._recoveries.labels(rung_of(status)).inc()
        if status.finished and not job.status.finished:
            kind = ConditionType.COMPLETE if status.holds(ConditionType.COMPLETE) else ConditionType.FAILED
            condition = status.condition(kind)
            self._finished.labels(kind.lower(), condition.reason if condition else "").inc()


class CacheMetrics(Collector):
    """Gauges that are counted when they are asked for, by the process that acts: those of all together would count each job twice."""

    def __init__(self, caches: Caches, registry: CollectorRegistry, acting: Callable[[], bool]) -> None:
        self._caches = caches
        self._acting = acting
        registry.register(self)

    @override
    def collect(self) -> Iterator[Metric]:
        """The jobs by phase and framework, their pods and their goodput; nothing while standing by."""
        if not self._acting():
            return
        jobs = GaugeMetricFamily("trainyard_jobs", "TrainingJobs that exist", labels=["phase", "framework"])
        records = self._caches.jobs()
        tally = Tally(record.sort for record in records)
        for phase in Phase:
            for framework in Framework:
                jobs.add_metric([phase, framework], tally[phase, framework])
        yield jobs
        pods = sum(len(cache.pods) for cache in self._caches.by_namespace.values())
        yield GaugeMetricFamily("trainyard_worker_pods", "Pods of TrainingJobs that exist", value=pods)
        yield from self._troubles(records)
        yield GaugeMetricFamily("trainyard_unreadable_jobs", "TrainingJobs that cannot be read", value=tally[None])
        yield from state_metrics(records)
        yield from self._goodput(records)
        yield from progress_metrics(records)

    def _troubles(self, records: Sequence[JobRecord]) -> Iterator[Metric]:
        """Of jobs that have such alone."""
        job = ["namespace", "name"]
        straggling = GaugeMetricFamily(
            "trainyard_job_straggling_ranks",
            "Ranks that are slower than the others; of jobs that have such alone",
            labels=job,
        )
        avoided = GaugeMetricFamily(
            "trainyard_job_avoided_nodes",
            "Nodes that have hurt a job, from which its workers keep away; of jobs that have such alone, until they have ended",
            labels=job,
        )
        for record in records:
            if record.straggling:
                straggling.add_metric([record.namespace, record.name], record.straggling)
            if record.avoided and record.sort and record.sort[0] not in IDLE:
                avoided.add_metric([record.namespace, record.name], record.avoided)
        yield from (straggling, avoided)

    def _goodput(self, records: Sequence[JobRecord]) -> Iterator[Metric]:
        """Of each job that tells its steps, as its status has it."""
        job = ["namespace", "name"]
        ratio = GaugeMetricFamily(
            "trainyard_job_goodput_ratio", "Share of a job's active time that went into steps that counted", labels=job
        )
        productive = CounterMetricFamily(
            "trainyard_job_productive_seconds", "Active time of a job that went into steps that counted", labels=job
        )
        lost = CounterMetricFamily(
            "trainyard_job_lost_seconds", "Active time of a job that did not, by what took it", labels=[*job, "reason"]
        )
        for record in records:
            if (told := record.goodput) is None:
                continue
            who = [record.namespace, record.name]
            if told.ratio is not None:
                ratio.add_metric(who, told.ratio)
            productive.add_metric(who, told.productive_seconds)
            for reason in LostSeconds.model_fields:
                lost.add_metric([*who, reason], getattr(told.lost_seconds, reason))
        yield from (ratio, productive, lost)


def tell_of_clock(clock: ServerClock, registry: CollectorRegistry) -> None:
    """How far this machine's clock is from the API server's, in each process that there is."""
    gauge = Gauge(
        "trainyard_clock_offset_seconds",
        "By how much the API server's clock, which the operator goes by, is ahead of its machine's",
        registry=registry,
    )
    gauge.set_function(lambda: clock.offset)
