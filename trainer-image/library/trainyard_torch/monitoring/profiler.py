"""Profile a few steps on demand: torch's profiler with a trace file, or Nsight Systems if the program runs under it. Never ends a training."""

from __future__ import annotations

import logging
import os
import tempfile
import threading
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import torch
from torch.profiler import ProfilerActivity, profile, record_function, schedule
from typing_extensions import override

from trainyard_torch.errors import first_line
from trainyard_torch.monitoring import trace
from trainyard_torch.monitoring.profile_request import MAX_STEPS, ProfileRequests

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trainyard_torch.monitoring.communication import Communication

logger = logging.getLogger(__name__)
FOLDER, FILE = "TRAINYARD_PROFILE_FOLDER", "TRAINYARD_PROFILE_FILE"
UNDER_NSIGHT = "NSYS_PROFILING_SESSION_ID"
"""A variable of programs that run under Nsight Systems. It and torch's profiler cannot both receive the device's events."""
DEFAULT_STEPS = 3
WRITE_TIMEOUT_SECONDS = 60.0
"""The longest time that the exit of a program waits for a trace to be written."""


@dataclass(frozen=True, slots=True)
class ProfilerConfig:
    """How profiles are made.

    Attributes:
        folder: the folder for traces; by default TRAINYARD_PROFILE_FOLDER, or `trainyard-profile` in the temporary folder.
        file: the path to watch for requests; by default TRAINYARD_PROFILE_FILE, or none.
        steps: the length of a profile whose request has no number.
        sample_every: profile every n-th step for the share of communication; 0: only on request.
        signal: whether SIGUSR2 requests a profile.

    Raises:
        ValueError: a number is out of range.
    """

    folder: Path | None = None
    file: Path | None = None
    steps: int = DEFAULT_STEPS
    sample_every: int = 0
    signal: bool = True

    def __post_init__(self) -> None:
        if not 1 <= self.steps <= MAX_STEPS:
            raise ValueError(f"steps must be from 1 to {MAX_STEPS}, got {self.steps}")
        if self.sample_every != 0 and self.sample_every < 10:
            raise ValueError(
                f"sample_every must be 0 or from 10 on, got {self.sample_every}: what is looked at too often is slowed down"
            )


class Window(Protocol):
    """A profile that is being made."""

    def step(self) -> bool:
        """Record a finished step. Return whether it was the last of this profile."""

    def marked(self, phase: str) -> AbstractContextManager[object]:
        """Return a context whose content is shown under this name."""

    def abandon(self) -> None:
        """Stop the profile before its end: the training ends."""


class TorchWindow(Window):
    """A profile by torch's profiler. Its first step is not included: starting takes time."""

    def __init__(self, steps: int, done: Callable[[profile], None]) -> None:
        # gpu-only: kernels in a profile
        kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]
        # There is no public way to ask. A second profile is not refused: it makes the end of the first one fail in the program.
        if getattr(torch.autograd, "_profiler_enabled", bool)():
            raise RuntimeError("the program makes a profile of its own")
        self._left, self._done = steps + 1, done
        self._profile = profile(activities=kinds, schedule=schedule(wait=0, warmup=1, active=steps, repeat=1))
        self._profile.start()

    @override
    def step(self) -> bool:
        self._left -= 1
        self._profile.step()
        if self._left:
            return False
        self._profile.stop()
        self._done(self._profile)
        return True

    @override
    def marked(self, phase: str) -> AbstractContextManager[object]:
        marked: AbstractContextManager[object] = record_function(f"trainyard::{phase}")
        return marked

    @override
    def abandon(self) -> None:
        self._profile.stop()


class NsightWindow(Window):
    """A capture of Nsight Systems, which writes its own report from the start call on, if it runs with `--capture-range=cudaProfilerApi`."""

    def __init__(self, steps: int) -> None:
        self._left = steps
        # gpu-only: a capture of Nsight Systems
        torch.cuda.profiler.start()

    @override
    def step(self) -> bool:
        self._left -= 1
        if not self._left:
            torch.cuda.profiler.stop()
        return not self._left

    @override
    def marked(self, phase: str) -> AbstractContextManager[object]:
        marked: AbstractContextManager[object] = torch.cuda.nvtx.range(phase)
        return marked

    @override
    def abandon(self) -> None:
        torch.cuda.profiler.stop()


class Profiler:
    """Makes the requested profiles one after the other. Used by one thread.

    Args:
        config: how profiles are made.
        rank: the rank of this process.
        environ: the environment.
    """

    def __init__(self, config: ProfilerConfig, rank: int, environ: Mapping[str, str] = os.environ) -> None:
        given = environ.get(FILE)
        file = config.file or (Path(given) if given else None)
        self._folder = config.folder or Path(environ.get(FOLDER) or Path(tempfile.gettempdir()) / "trainyard-profile")
        self._rank, self._every = rank, config.sample_every
        self._nsight = UNDER_NSIGHT in environ and torch.cuda.is_available()
        self._requests = ProfileRequests(config.steps, file)
        if config.signal:
            self._requests.listen()
        self._window: Window | None = None
        self._writer: threading.Thread | None = None
        self.communication: Communication | None = None
        """The communication shares of the last profile; None before the first."""

    def marked(self, phase: str) -> AbstractContextManager[object] | None:
        """Return a context whose content is shown under this name; None if no profile is being made."""
        return self._window.marked(phase) if self._window else None

    def step(self, step: int) -> None:
        """Start or finish a profile after this step, if due. Errors are logged, and training continues."""
        try:
            if self._window:
                if self._window.step():
                    self._window = None
            elif not (self._writer and self._writer.is_alive()):
                self._begin(step)
        except Exception as error:  # noqa: BLE001 - a profile is worth no training
            self._window = None
            logger.warning("no profile of rank %s after step %s: %s", self._rank, step, first_line(error))

    def close(self) -> None:
        """Wait for a trace that is being written, up to a minute. An incomplete profile is dropped."""
        self._requests.close()
        window, self._window = self._window, None
        if window:
            with suppress(RuntimeError):
                window.abandon()
            logger.warning("no profile of rank %s: the training has ended before it was complete", self._rank)
        if self._writer:
            self._writer.join(WRITE_TIMEOUT_SECONDS)

    def _begin(self, step: int) -> None:
        request = self._requests.take()
        if request and (request.ranks is None or self._rank in request.ranks):
            logger.warning("rank %s profiles %s steps after step %s", self._rank, request.steps, step)
            if self._nsight:
                self._window = NsightWindow(request.steps)
            else:
                path = self._folder / trace.name(self._rank, step)
                self._window = TorchWindow(request.steps, lambda made: self._write(made, path))
        elif self._every and step % self._every == 0 and not self._nsight:
            self._window = TorchWindow(1, lambda made: self._write(made, None))

    def _write(self, made: profile, path: Path | None) -> None:
        """Write the trace in a thread, since it may have hundreds of megabytes."""
        self._writer = threading.Thread(target=self._finish, args=(made, path), name="profile", daemon=True)
        self._writer.start()

    def _finish(self, made: profile, path: Path | None) -> None:
        try:
            if path:
                trace.sweep(path.parent, self._rank)
            with trace.exported(made.export_chrome_trace, path or Path(tempfile.gettempdir()) / "sample") as plain:
                if path:
                    trace.pack(plain, path)
                    logger.warning("the profile of rank %s is in %s", self._rank, path)
                self.communication = trace.communication(plain) or self.communication
        except Exception as error:  # noqa: BLE001 - as above
            logger.warning("no profile of rank %s: %s", self._rank, first_line(error))
