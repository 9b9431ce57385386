"""The TensorBoard backend: event files in one folder for all attempts, without duplicate steps."""

from __future__ import annotations

import os
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, assert_never

from typing_extensions import override

from trainyard_torch.errors import first_line
from trainyard_torch.tracking.background import Sink, TrackingError
from trainyard_torch.tracking.events import CheckpointSaved, MetricsLogged, RunEnded, RunStarted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainyard_torch.export.record import Record
    from trainyard_torch.tracking.events import Event


class TensorBoard(Sink):
    """A folder of event files, for `tensorboard --logdir`.

    An attempt that resumes from step n purges the later steps of earlier attempts.

    Args:
        log_dir: the folder of this training alone, on a volume that its attempts share.

    Raises:
        ValueError: this is a URL.
        ModuleNotFoundError: the package tensorboard is missing.
    """

    def __init__(self, log_dir: str | os.PathLike[str]) -> None:
        if find_spec("tensorboard") is None:
            raise ModuleNotFoundError("tracking by TensorBoard needs its package: pip install tensorboard")
        path = os.fspath(log_dir)
        if "://" in path:
            raise ValueError(f"log_dir must be a path, not {path}: mount a volume, or take MLflow")
        self._log_dir = Path(path)
        self._writer: Any = None

    @property
    @override
    def name(self) -> str:
        return f"TensorBoard in {self._log_dir}"

    @override
    def write(self, events: Sequence[Event], /) -> None:
        try:
            if self._writer is None:
                self._writer = _opened(self._log_dir, events)
            for event in events:
                self._log(event)
            self._writer.flush()
        except BaseException:
            # A writer that has failed once never writes again; a new one purges what it wrote.
            writer, self._writer = self._writer, None
            with suppress(Exception):
                writer.close()
            raise

    @override
    def register(self, name: str, url: str, record: Record, local: str | None, /) -> str:
        """Write the record as text, since TensorBoard has no registry. The version is the start of the weights' checksum."""
        writer = self._writer
        if writer is None:
            raise TrackingError(f"{name} was not registered: nothing could be written to {self._log_dir} so far")
        text = f"{url}\n\n```\n{record.text()}```"
        try:
            writer.add_text(f"models/{name}", text, record.checkpoint.get("step", 0))
            writer.flush()
        except Exception as error:
            raise TrackingError(f"{name} was not registered in {self._log_dir}: {first_line(error)}") from error
        return record.weights[:12]

    @override
    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def _log(self, event: Event) -> None:
        match event:
            case RunStarted():
                here = event.step or 0
                self._writer.add_text("parameters", _table(event), here, event.time)
                source = f"from {event.base}" if event.base else "from the beginning"
                self._writer.add_text("attempts", f"attempt {event.attempt}, {source}", here, event.time)
            case MetricsLogged():
                for name, value in event.values.items():
                    self._writer.add_scalar(name, value, event.step, event.time)
            case CheckpointSaved():
                self._writer.add_text("checkpoints", event.path, event.step, event.time)
            case RunEnded():
                pass
            case _:
                assert_never(event)


def _opened(log_dir: Path, events: Sequence[Event]) -> Any:
    """Open a writer that purges earlier records of the steps that follow."""
    from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415 - optional

    began = next((event for event in events if isinstance(event, RunStarted)), None)
    purge = min((event.step for event in events if isinstance(event, MetricsLogged)), default=None)
    if began:
        purge = 0 if began.step is None else began.step + 1
    return SummaryWriter(str(log_dir), purge_step=purge)


def _table(began: RunStarted) -> str:
    """Return parameters as a Markdown table."""
    rows = (f"| {name} | {value} |" for name, value in began.parameters.items())
    return "\n".join(("| parameter | value |", "|---|---|", *rows))
