"""Report a training to MLflow or TensorBoard while `Loop` runs it."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from trainyard_torch.checkpoint.communicator import Communicator
from trainyard_torch.context import STOPPED_EXIT_CODE
from trainyard_torch.export.exporting import read_record
from trainyard_torch.process_info import ProcessInfo
from trainyard_torch.tracking.aggregation import RankAggregator
from trainyard_torch.tracking.background import Background, Sink, TrackingError
from trainyard_torch.tracking.events import CheckpointSaved, MetricsLogged, RunEnded, RunStarted, flat

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType
    from typing import Self

    from trainyard_torch.checkpoint.checkpoints import Checkpoints
    from trainyard_torch.checkpoint.manifest import Manifest
    from trainyard_torch.monitoring.monitor import Monitor
    from trainyard_torch.monitoring.rank_metrics import RankMetrics
    from trainyard_torch.tracking.events import Status

CLOSE_TIMEOUT_SECONDS = 15.0
"""The seconds that the end of a training waits for a slow server."""
HASTY_CLOSE_TIMEOUT_SECONDS = 3.0
"""The same, if the next attempt waits for this one to exit."""


class Tracking:
    """Reports parameters once, metrics at intervals, and each checkpoint of the whole training. Rank 0 sends them in a thread.

    Tracking never ends or delays a training. A server that is slow, unreachable or rejects events is logged once. Missed
    events are sent later, up to `queue_size`.

    Create it on all processes, and pass it to `Loop`. A program with its own loop calls `start`, and `close` at the end, or uses it in
    a `with`.

    Args:
        sink: the backend: `MLflow(…)` or `TensorBoard(…)`.
        log_every: the steps between two reports of metrics, at least 1.
        parameters: the parameters of the training: a mapping, an `argparse.Namespace` or a dataclass; nested ones are named `outer.inner`.
        queue_size: the events that are kept while the server is unreachable. Each report of metrics is one event.

    Raises:
        ValueError: a number is out of range, or parameters have another type.
    """

    def __init__(self, sink: Sink, *, log_every: int = 10, parameters: Any = None, queue_size: int = 4096) -> None:
        if log_every < 1:
            raise ValueError(f"log_every must be from 1 on, not {log_every}")
        self._log_every = log_every
        self._parameters = flat({} if parameters is None else parameters)
        self._sink = sink
        self._background = Background(sink, queue_size=queue_size)
        self._process = ProcessInfo.of(os.environ)
        self._monitor: Monitor | None = None
        self._aggregator: RankAggregator | None = None
        self._last_step, self._closed = 0, False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        code = error.code if isinstance(error, SystemExit) else None if error is None else 1
        self.close("finished" if code in (None, 0) else "stopped" if code == STOPPED_EXIT_CODE else "failed")

    def start(self, monitor: Monitor, *, checkpoints: Checkpoints | None = None, found: Manifest | None = None) -> None:
        """Start or resume the training's run. Call it on all processes, once, before the first step; `Loop` does so.

        Args:
            monitor: the source of the metrics.
            checkpoints: the checkpoints of the training, already loaded.
            found: the result of `Checkpoints.load`.

        Raises:
            RuntimeError: it was called already.
        """
        if self._aggregator is not None:
            raise RuntimeError("this Tracking was started already: make one for each loop")
        self._monitor, self._aggregator = monitor, RankAggregator(Communicator())
        monitor.observers.append((self._log_every, self._observe))
        if self._process.rank:
            return
        if checkpoints:
            checkpoints.observers.append(self._saved)
        self._background.put(
            RunStarted(
                time=time.time(),
                job=self._process.job_attempt.job,
                name=os.environ.get("TRAINYARD_JOB_NAME", ""),
                attempt=checkpoints.attempt if checkpoints else self._process.job_attempt.attempt,
                step=found.step if found else None,
                base=str(found.name) if found else "",
                checkpoints=checkpoints.url if checkpoints else "",
                parameters=self._parameters,
            )
        )
        if checkpoints and found:
            # The attempt that made it may have been killed before it reported.
            self._saved(found, checkpoints.url)

    def log_metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Report the program's own metrics, such as those of an evaluation. Only rank 0's values are used.

        Raises:
            RuntimeError: `start` was not called.
        """
        if self._aggregator is None:
            raise RuntimeError("call start() before log_metrics(): pass this Tracking to Loop, or call it yourself")
        if self._process.rank == 0:
            self._background.put(
                MetricsLogged(time.time(), step, {name: float(value) for name, value in values.items()})
            )

    def register_model(self, name: str, url: str, **options: object) -> str | None:
        """Register an export under a model name: with MLflow, as a version of a registered model. Waits for the server. Call it after `start`.

        Args:
            name: the name of the model.
            url: the folder of the export, written by `export_model`.
            options: options for fsspec's file system.

        Returns:
            The version; None on all ranks except rank 0.

        Raises:
            TrackingError: there is no export, or the server refuses or does not answer.
            ExportError: the export is incomplete.
            StoreError: its folder cannot be read.
        """
        if self._process.rank:
            return None
        record = read_record(url, verify=False, **options)
        if record is None:
            raise TrackingError(f"{name} was not registered: there is no export in {url}")
        if not self._background.flush(CLOSE_TIMEOUT_SECONDS):
            raise TrackingError(f"{name} was not registered: {self._sink.name} does not answer")
        local = url.removeprefix("file://") if "://" not in url.removeprefix("file://") else None
        return self._sink.register(name, url, record, local)

    def close(self, status: Status = "finished") -> None:
        """End the attempt's run: send the remaining events, within seconds. Idempotent.

        Args:
            status: "finished", "stopped" (saved, to be resumed) or "failed".
        """
        if self._closed:
            return
        self._closed = True
        last = [] if status == "failed" else self._last()
        if self._process.rank:
            return
        for measured in last:
            self._background.put(measured)
        if self._aggregator:
            self._background.put(RunEnded(time.time(), status))
        self._background.close(CLOSE_TIMEOUT_SECONDS if status == "finished" else HASTY_CLOSE_TIMEOUT_SECONDS)

    def _observe(self, reading: RankMetrics) -> None:
        if self._aggregator is None or self._closed:
            return
        self._aggregator.put(reading)
        self._last_step = reading.step
        for measured in self._aggregator.arrived():
            if self._process.rank == 0:
                self._background.put(measured)

    def _last(self) -> list[MetricsLogged]:
        """Return pending metrics and those of the last step. All processes stop after the same step."""
        if self._monitor is None or self._aggregator is None:
            return []
        reading = self._monitor.snapshot()
        if reading.steps and reading.step != self._last_step:
            self._aggregator.put(reading)
        return self._aggregator.rest(1.0)

    def _saved(self, manifest: Manifest, url: str) -> None:
        """Queue a checkpoint. The thread that writes checkpoints calls it."""
        self._background.put(CheckpointSaved(manifest.time, manifest.step, manifest.attempt, f"{url}/{manifest.name}"))
