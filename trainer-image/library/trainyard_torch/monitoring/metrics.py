"""The metrics of a pod, each with its unit and meaning, as functions of what its ranks tell. Pure; docs/training/watching.md has the same table.

What differs between ranks bears their number, and so do all counters: a sum over ranks that come and go would be none. What is one number
for a pod is told once.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from trainyard_torch.monitoring.rank_metrics import RankMetrics

PREFIX = "trainyard_training_"


class Sample(NamedTuple):
    """A value, with those of the metric's labels."""

    labels: tuple[str, ...]
    value: float


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric.

    Attributes:
        name: all of it, unit and `_total` included.
        kind: `counter` or `gauge`.
        labels: their names.
        meaning: what it is, in a sentence.
        samples: what it is now.
    """

    name: str
    kind: str
    labels: tuple[str, ...]
    documentation: str
    samples: Callable[[Sequence[RankMetrics]], Iterator[Sample]]


def per_rank(name: str, kind: str, documentation: str, value: Callable[[RankMetrics], float | None]) -> Metric:
    """One series for each rank that has the value."""

    def samples(readings: Sequence[RankMetrics]) -> Iterator[Sample]:
        for reading in readings:
            if (found := value(reading)) is not None:
                yield Sample((str(reading.rank),), found)

    return Metric(PREFIX + name, kind, ("rank",), documentation, samples)


def per_pod(
    name: str, documentation: str, value: Callable[[RankMetrics], float | None], combine: Callable[[list[float]], float]
) -> Metric:
    """One series, from those ranks that have the value; none where no rank has it."""

    def samples(readings: Sequence[RankMetrics]) -> Iterator[Sample]:
        if found := [each for reading in readings if (each := value(reading)) is not None]:
            yield Sample((), combine(found))

    return Metric(PREFIX + name, "gauge", (), documentation, samples)


def greatest(values: list[float]) -> float:
    """The greatest; one that is no number is greater than all, so that it is seen."""
    return next((value for value in values if value != value), max(values))  # noqa: PLR0124 - NaN


def _phases(readings: Sequence[RankMetrics]) -> Iterator[Sample]:
    for reading in readings:
        for phase, seconds in reading.phases.items():
            yield Sample((str(reading.rank), phase), seconds)


METRICS = (
    per_rank("steps_total", "counter", "Steps that this process has done.", lambda reading: reading.steps),
    per_rank("samples_total", "counter", "Samples that this process has been given.", lambda reading: reading.samples),
    per_rank("tokens_total", "counter", "Tokens that this process has been given.", lambda reading: reading.tokens),
    Metric(
        f"{PREFIX}phase_seconds_total",
        "counter",
        ("rank", "phase"),
        "Time, by what this process did: the phases add up to all of it, up to the end of the last step.",
        _phases,
    ),
    per_rank("step", "gauge", "The number of the last step that was done.", lambda reading: reading.step),
    per_rank(
        "last_step_timestamp_seconds", "gauge", "When that was, in seconds since 1970.", lambda reading: reading.time
    ),
    per_rank(
        "step_seconds",
        "gauge",
        "A step's time, checkpoints, evaluation and compilation left out: the median of the last 64.",
        lambda reading: reading.step_seconds,
    ),
    per_rank(
        "own_seconds",
        "gauge",
        "What of it this rank worked itself, without waiting for others: the median of the last 64.",
        lambda reading: reading.compute_seconds,
    ),
    per_pod(
        "samples_per_second",
        "Samples a second, of all ranks of the pod, over the last 64 steps.",
        lambda reading: reading.samples_per_second,
        sum,
    ),
    per_pod(
        "tokens_per_second",
        "Tokens a second, of all ranks of the pod, over the last 64 steps.",
        lambda reading: reading.tokens_per_second,
        sum,
    ),
    per_pod(
        "mfu_ratio",
        "Share of the devices' peak that the model's own operations make use of (model FLOPs utilisation): the mean over the pod's ranks.",
        lambda reading: reading.mfu,
        fmean,
    ),
    per_pod("loss", "The loss that was told last: the mean over the pod's ranks.", lambda reading: reading.loss, fmean),
    per_pod(
        "gradient_norm",
        "The norm of the gradient that was told last: the greatest of the pod's ranks.",
        lambda reading: reading.grad_norm,
        greatest,
    ),
    per_rank(
        "communication_ratio",
        "gauge",
        "Share of the time in which a collective was under way, in the steps that the profiler looked at last.",
        lambda reading: reading.communication,
    ),
    per_rank(
        "exposed_communication_ratio",
        "gauge",
        "Share of the time in which one was and nothing was computed, in the same steps.",
        lambda reading: reading.exposed_communication,
    ),
    per_rank(
        "device_memory_allocated_bytes",
        "gauge",
        "Memory of the device that tensors take.",
        lambda reading: reading.memory.get("allocated"),
    ),
    per_rank(
        "device_memory_reserved_bytes",
        "gauge",
        "Memory of the device that torch holds, tensors included.",
        lambda reading: reading.memory.get("reserved"),
    ),
    per_rank(
        "device_memory_peak_bytes",
        "gauge",
        "The most that tensors have taken since the process began, or since the program has reset it.",
        lambda reading: reading.memory.get("peak"),
    ),
    per_rank(
        "host_memory_bytes",
        "gauge",
        "Memory of the host that the process takes (resident set), its children not included.",
        lambda reading: reading.memory.get("host"),
    ),
    per_pod(
        "checkpoint_step",
        "The last step in the newest checkpoint that is stored: told by the pod of rank 0.",
        lambda reading: reading.checkpoint_step,
        max,
    ),
    per_pod(
        "checkpoint_seconds",
        "How long it took to be stored: told by the pod of rank 0.",
        lambda reading: reading.checkpoint_seconds,
        max,
    ),
    per_pod(
        "checkpoint_timestamp_seconds",
        "When it was stored, in seconds since 1970: told by the pod of rank 0.",
        lambda reading: reading.checkpoint_time,
        max,
    ),
    per_pod("ranks", "Ranks of the pod that are alive and tell something.", lambda _: 1.0, sum),
)
