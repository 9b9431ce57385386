"""How far each job is and how fast it gets on, as its status says it: for dashboards, and for alerts on one that stands still."""

from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import GaugeMetricFamily, Metric

from trainyard.api.progress import MeasuredProgress, Progress
from trainyard.api.status import Phase
from trainyard.controller.reconcile.resources import JobRecord

IDLE = frozenset({Phase.COMPLETE, Phase.FAILED, Phase.SUSPENDED})
KNOWN: dict[str, tuple[str, Callable[[Progress], float | None]]] = {
    "step": ("The last step that all ranks have done", lambda told: told.step),
    "total_steps": ("The step at which the training means to end", lambda told: told.total_steps),
    "loss": ("The mean of the losses that the ranks have told last", lambda told: told.loss),
    "progress_timestamp_seconds": (
        "When the operator last heard of a change, in seconds since 1970",
        lambda told: told.updated_at.timestamp(),
    ),
    "checkpoint_step": (
        "The last step in the newest checkpoint that is stored",
        lambda told: told.checkpoint.step if told.checkpoint else None,
    ),
    "checkpoint_seconds": (
        "How long it took to be stored",
        lambda told: told.checkpoint.seconds if told.checkpoint else None,
    ),
    "checkpoint_timestamp_seconds": (
        "When the operator heard of it, in seconds since 1970",
        lambda told: told.checkpoint.time.timestamp() if told.checkpoint else None,
    ),
}
"""Of each job that has not ended and is not suspended: what its program has told, of whichever attempt."""
PACES: dict[str, tuple[str, Callable[[Progress], float | None]]] = {
    "step_seconds": (
        "What a step takes as a rule: the median over the last steps and the ranks",
        lambda told: told.step_seconds,
    ),
    "fastest_rank_seconds": (
        "What it takes the fastest rank by itself, where ranks tell that",
        lambda told: told.fastest_rank_seconds,
    ),
    "slowest_rank_seconds": (
        "What it takes the slowest rank by itself, where ranks tell that",
        lambda told: told.slowest_rank_seconds,
    ),
}
"""Of each job that runs, as the next ones."""
FAST: dict[str, tuple[str, Callable[[MeasuredProgress], float | None]]] = {
    "samples_per_second": ("Samples a second, of all ranks together", lambda told: told.samples_per_second),
    "tokens_per_second": ("Tokens a second, of all ranks together", lambda told: told.tokens_per_second),
    "mfu_ratio": ("Share of its device's peak that a rank uses, the mean over the ranks", lambda told: told.mfu),
    "gradient_norm": ("The norm of the gradient, the mean of what ranks have told last", lambda told: told.grad_norm),
    "communication_ratio": ("Share of the time with a collective under way", lambda told: told.communication_share),
    "data_ratio": ("Share of the time in which ranks wait for data", lambda told: told.data_share),
    "checkpoint_ratio": (
        "Share of the time in which a checkpoint keeps ranks from training",
        lambda told: told.checkpoint_share,
    ),
    "memory_bytes": ("Peak memory of the rank with the most", lambda told: told.memory_bytes),
    "warm_bytes": (
        "Memory of the processes from which ranks are started anew, of all workers together",
        lambda told: told.warm_bytes,
    ),
}
"""Of each job that runs: of one that does not, it would be the speed of a while ago."""


def progress_metrics(records: Iterable[JobRecord]) -> Iterator[Metric]:
    """A gauge for each number that can be told, with a sample of each job that tells it."""
    known = {name: _gauge(name, text) for name, (text, _) in KNOWN.items()}
    fast = {name: _gauge(name, text) for name, (text, _) in FAST.items()}
    workers = _gauge("workers", "Workers that the group of the current attempt has")
    active = _gauge(
        "active_timestamp_seconds",
        "Since when a job that tells its progress has been active without a suspension between, in seconds since 1970",
    )
    paces = {name: _gauge(name, text) for name, (text, _) in PACES.items()}
    for record in records:
        if record.sort is None or record.sort[0] in IDLE:
            continue
        who, told, runs = [record.namespace, record.name], record.progress, record.sort[0] is Phase.RUNNING
        workers.add_metric(who, record.workers)
        if told is None:
            continue
        _add(known, {name: number(told) for name, (_, number) in KNOWN.items()}, who)
        # What was told before a suspension has the time of then: a job that has just been resumed is not late because of it.
        if record.active_since:
            active.add_metric(who, record.active_since.timestamp())
        if runs:
            _add(paces, {name: number(told) for name, (_, number) in PACES.items()}, who)
        if runs and (measured := told.measured):
            _add(fast, {name: number(measured) for name, (_, number) in FAST.items()}, who)
    yield from (workers, active, *paces.values(), *known.values(), *fast.values())


def _gauge(name: str, text: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"trainyard_job_{name}", text, labels=["namespace", "name"])


def _add(gauges: dict[str, GaugeMetricFamily], numbers: dict[str, float | None], who: list[str]) -> None:
    for name, number in numbers.items():
        if number is not None:
            gauges[name].add_metric(who, number)
