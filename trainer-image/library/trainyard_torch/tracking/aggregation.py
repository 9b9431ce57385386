"""Aggregate the metrics of all processes by one small asynchronous collective at intervals."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from trainyard_torch.monitoring.meter import PHASES
from trainyard_torch.tracking.events import MetricsLogged

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trainyard_torch.checkpoint.communicator import Communicator
    from trainyard_torch.monitoring.rank_metrics import RankMetrics

SUMS = ("samples_per_second", "tokens_per_second")
"""The metrics that are summed over the processes."""
MEANS = (
    "loss",
    "grad_norm",
    "mfu",
    "step_seconds",
    "communication",
    "exposed_communication",
    *(f"share/{phase}" for phase in PHASES),
)
"""The metrics that are averaged over the processes that know them; the loss by their samples."""
NAMES = (*SUMS, *MEANS)


def values(reading: RankMetrics) -> dict[str, float]:
    """Return the known metrics of one process, by their reported names."""
    known = {name: getattr(reading, name) for name in NAMES if "/" not in name}
    known.update({f"share/{phase}": share for phase, share in reading.shares.items()})
    return {name: float(value) for name, value in known.items() if value is not None}


def packed(known: Mapping[str, float], loss_share: float = 1.0) -> list[float]:
    """Return the metrics as numbers that can be summed over processes: for each name the weighted value and its weight, 0 if unknown."""
    weights = {name: loss_share if name == "loss" else 1.0 for name in known}
    return [
        number for name in NAMES for number in (known.get(name, 0.0) * weights.get(name, 0.0), weights.get(name, 0.0))
    ]


def unpacked(sums: list[float]) -> dict[str, float]:
    """Return the training's metrics from the sums of `packed`."""
    found = {}
    for name, total, count in zip(NAMES, sums[::2], sums[1::2], strict=True):
        if count:
            found[name] = total if name in SUMS else total / count
    return found


class RankAggregator:
    """Aggregates metrics. All processes create it, and use it at the same steps.

    Args:
        communicator: the communicator of all processes.
    """

    def __init__(self, communicator: Communicator) -> None:
        self._communicator = communicator
        self._under_way: list[tuple[Any, torch.Tensor, float, int]] = []

    def put(self, reading: RankMetrics) -> None:
        """Add the metrics of this process after a step: the same step on all processes."""
        sums = torch.tensor(packed(values(reading), reading.loss_share), dtype=torch.float64)
        work = (
            None
            if self._communicator.group is None
            else dist.all_reduce(sums, group=self._communicator.group, async_op=True)
        )
        self._under_way.append((work, sums, reading.time, reading.step))

    def arrived(self) -> list[MetricsLogged]:
        """Return the results that have arrived since the last call, in order. Does not wait."""
        found = []
        while self._under_way:
            work, sums, time, step = self._under_way[0]
            if work is not None and not work.is_completed():
                break
            del self._under_way[0]
            with suppress(RuntimeError):  # a process has exited
                if work is not None:
                    work.wait()
                found.append(MetricsLogged(time, step, unpacked(sums.tolist())))
        return found

    def rest(self, seconds: float) -> list[MetricsLogged]:
        """Wait up to `seconds` for pending collectives: for the end, when all processes have reported the same steps."""
        for work, *_ in self._under_way:
            if work is not None:
                with suppress(RuntimeError):  # a process has exited
                    work.wait(timedelta(seconds=seconds))
        return self.arrived()
