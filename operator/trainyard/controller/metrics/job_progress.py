"""Collect the progress and speed of each job from its status, for dashboards and for alerts on stalled jobs."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from prometheus_client.core import GaugeMetricFamily, Metric

from trainyard.api.progress import MeasuredProgress, Progress
from trainyard.api.status import Phase
from trainyard.controller.reconcile.resources import JobRecord

Source = TypeVar("Source")
Readers = dict[str, tuple[str, Callable[[Source], float | None]]]
"""By the name of a gauge, its help text and the function that reads its value."""
IDLE_PHASES = frozenset({Phase.COMPLETE, Phase.FAILED, Phase.SUSPENDED, Phase.QUEUED})
PROGRESS_READERS: Readers[Progress] = {
    "step": ("Last step that all ranks have completed", lambda progress: progress.step),
    "total_steps": ("Step at which the training finishes", lambda progress: progress.total_steps),
    "loss": ("Mean of the losses that the ranks last reported", lambda progress: progress.loss),
    "progress_timestamp_seconds": (
        "When the operator last received a change of progress, in seconds since 1970",
        lambda progress: progress.updated_at.timestamp(),
    ),
    "checkpoint_step": (
        "Last step in the newest stored checkpoint",
        lambda progress: progress.checkpoint.step if progress.checkpoint else None,
    ),
    "checkpoint_seconds": (
        "Time that it took to store the newest checkpoint",
        lambda progress: progress.checkpoint.seconds if progress.checkpoint else None,
    ),
    "checkpoint_timestamp_seconds": (
        "When the operator received the report of the newest checkpoint, in seconds since 1970",
        lambda progress: progress.checkpoint.time.timestamp() if progress.checkpoint else None,
    ),
}
"""Of each job that is neither finished nor suspended nor queued: what its program last reported, in whichever attempt."""
STEP_TIME_READERS: Readers[Progress] = {
    "step_seconds": (
        "Usual time of a step: the median over recent steps and ranks",
        lambda progress: progress.step_seconds,
    ),
    "fastest_rank_seconds": (
        "Step time of the fastest rank without waiting for others, if ranks report it",
        lambda progress: progress.fastest_rank_seconds,
    ),
    "slowest_rank_seconds": (
        "Step time of the slowest rank without waiting for others, if ranks report it",
        lambda progress: progress.slowest_rank_seconds,
    ),
}
"""Of each running job."""
SPEED_READERS: Readers[MeasuredProgress] = {
    "samples_per_second": ("Samples per second of all ranks together", lambda progress: progress.samples_per_second),
    "tokens_per_second": ("Tokens per second of all ranks together", lambda progress: progress.tokens_per_second),
    "mfu_ratio": (
        "Model FLOPs utilization: share of the device's peak, as the mean over the ranks",
        lambda progress: progress.mfu,
    ),
    "gradient_norm": ("Gradient norm, as the mean of what ranks last reported", lambda progress: progress.grad_norm),
    "communication_ratio": (
        "Share of the time with a collective in flight",
        lambda progress: progress.communication_share,
    ),
    "data_ratio": ("Share of the time that ranks wait for data", lambda progress: progress.data_share),
    "checkpoint_ratio": (
        "Share of the time that a checkpoint blocks training",
        lambda progress: progress.checkpoint_share,
    ),
    "memory_bytes": ("Peak memory of the rank with the most", lambda progress: progress.memory_bytes),
    "gemm_seconds": (
        "Time of the slowest GPU for 50 TFLOP of matrix products, if ranks wait for others within each pass",
        lambda progress: progress.gemm_seconds,
    ),
    "warm_start_memory_bytes": (
        "Memory of the processes that ranks are restarted from, of all workers together",
        lambda progress: progress.warm_bytes,
    ),
}
"""Of each running job: a speed of an earlier time would mislead."""


@dataclass(frozen=True, slots=True)
class _GaugeGroup(Generic[Source]):
    """Gauges that read their values from one source."""

    readers: Readers[Source]
    gauges: dict[str, GaugeMetricFamily] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "gauges", {name: _gauge(name, text) for name, (text, _) in self.readers.items()})

    def add(self, source: Source | None, job_labels: list[str]) -> None:
        """Add a sample for each value that the source has."""
        if source is None:
            return
        for name, (_, read) in self.readers.items():
            if (value := read(source)) is not None:
                self.gauges[name].add_metric(job_labels, value)


def progress_metrics(records: Iterable[JobRecord]) -> Iterator[Metric]:
    """Yield a gauge for each number, with a sample of each job that reports it."""
    progress_gauges, step_time_gauges = _GaugeGroup(PROGRESS_READERS), _GaugeGroup(STEP_TIME_READERS)
    speed_gauges = _GaugeGroup(SPEED_READERS)
    workers = _gauge("workers", "Workers in the group of the current attempt")
    active = _gauge(
        "active_timestamp_seconds",
        "Since when a job that reports progress is active without a suspension, in seconds since 1970",
    )
    for record in records:
        if record.category is None or record.category[0] in IDLE_PHASES:
            continue
        job_labels = [record.namespace, record.name]
        workers.add_metric(job_labels, record.group_size)
        if (progress := record.progress) is None:
            continue
        progress_gauges.add(progress, job_labels)
        # A resumed job still has the progress time from before its suspension, and is not late because of it.
        if record.active_since:
            active.add_metric(job_labels, record.active_since.timestamp())
        if record.category[0] is Phase.RUNNING:
            step_time_gauges.add(progress, job_labels)
            speed_gauges.add(progress.measured, job_labels)
    yield from (workers, active)
    for group in (step_time_gauges, progress_gauges, speed_gauges):
        yield from group.gauges.values()


def _gauge(name: str, text: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"trainyard_job_{name}", text, labels=["namespace", "name"])
