"""The metrics of a pod, each with unit and documentation, as functions of its ranks' metrics. Pure; docs/training/monitoring.md has the same table.

Values that differ between ranks have a rank label, and so do all counters: a sum over changing ranks would not be a counter. Values
of the whole pod have one series.
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
    """A value with the values of the metric's labels."""

    labels: tuple[str, ...]
    value: float


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric.

    Attributes:
        name: the full name, including unit and `_total`.
        kind: `counter` or `gauge`.
        labels: the label names.
        documentation: a sentence.
        samples: the current values.
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
    """One series over the ranks that have the value; no series if no rank has it."""

    def samples(readings: Sequence[RankMetrics]) -> Iterator[Sample]:
        if found := [each for reading in readings if (each := value(reading)) is not None]:
            yield Sample((), combine(found))

    return Metric(PREFIX + name, "gauge", (), documentation, samples)


def greatest(values: list[float]) -> float:
    """Return the greatest value. NaN is greater than all, so that it is visible."""
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
        "compute_seconds",
        "gauge",
        "What of it this rank worked itself, without waiting for others: the median of the last 64.",
        lambda reading: reading.compute_seconds,
    ),
    per_rank(
        "gemm_seconds",
        "gauge",
        "Time of the GPU for 50 TFLOP of matrix products: the median of the last three times.",
        lambda reading: reading.gemm_seconds,
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
    per_pod("loss", "Last reported loss: mean over the pod's ranks.", lambda reading: reading.loss, fmean),
    per_pod(
        "gradient_norm",
        "Last reported gradient norm: maximum over the pod's ranks.",
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
        "Maximum memory of tensors since the process started, or since the program reset it.",
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
        "Last step of the newest stored checkpoint. Reported by the pod of rank 0.",
        lambda reading: reading.checkpoint_step,
        max,
    ),
    per_pod(
        "checkpoint_seconds",
        "Seconds that storing it took. Reported by the pod of rank 0.",
        lambda reading: reading.checkpoint_seconds,
        max,
    ),
    per_pod(
        "checkpoint_timestamp_seconds",
        "When it was stored, in seconds since 1970. Reported by the pod of rank 0.",
        lambda reading: reading.checkpoint_time,
        max,
    ),
    per_pod("ranks", "Live ranks of the pod that report metrics.", lambda _: 1.0, sum),
)
