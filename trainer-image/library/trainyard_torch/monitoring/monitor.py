"""Measures a training, and reports to the agent, Prometheus and the profiler.

Nothing here ends a training, or makes it wait for a GPU or another process.
"""

from __future__ import annotations

import logging
import math
import operator
import os
import time
from typing import TYPE_CHECKING

import torch

from trainyard_torch.agent import agent
from trainyard_torch.monitoring import endpoint, flops as flop, metrics_store
from trainyard_torch.monitoring.compute_time import ComputeTimer
from trainyard_torch.monitoring.deferred import DeferredScalars
from trainyard_torch.monitoring.gemm_timer import DEFAULT_INTERVAL_SECONDS, GemmTimer
from trainyard_torch.monitoring.memory import memory
from trainyard_torch.monitoring.meter import Meter
from trainyard_torch.monitoring.phase import Phase
from trainyard_torch.monitoring.profiler import Profiler, ProfilerConfig
from trainyard_torch.monitoring.rank_metrics import RankMetrics
from trainyard_torch.process_info import ProcessInfo

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from contextlib import AbstractContextManager
    from types import TracebackType
    from typing import Self

logger = logging.getLogger(__name__)
PUBLISH_SECONDS = 1.0
"""The interval between two published snapshots."""
COMPUTE_PHASES = ("data", "forward")
"""The phases in which a process waits for no other, with DDP."""


class Monitor:
    """Measures a training on one process. Create it after the process group, and call it in the training thread.

    Args:
        total_steps: the step at which training ends, for the job's status.
        compute_phases: the phases in which this process does not wait for others, for the detection of stragglers. With FSDP or tensor
            parallelism `("data",)`, since the model itself waits there. If processes do different work (pipeline stages), none.
        port: the port on which the pod's local rank 0 serves Prometheus; by default TRAINYARD_METRICS_PORT, or none.
        profiler: how profiles are made.
        device: the device of the model; by default the current GPU, or the CPU.
        peak_flops: the FLOP/s of the device, if its name is not known.
        gemm_interval_seconds: the interval at which a GPU times matrix products (`GemmTimer`), which is done if `forward` is no compute phase. 0: none.

    Attributes:
        observers: pairs of an interval in steps and a function. The training thread calls the function with a snapshot.

    Raises:
        ValueError: a value is invalid.
    """

    def __init__(
        self,
        *,
        total_steps: int | None = None,
        compute_phases: Collection[str] = COMPUTE_PHASES,
        port: int | None = None,
        profiler: ProfilerConfig | None = None,
        device: torch.device | str | None = None,
        peak_flops: float | None = None,
        gemm_interval_seconds: float = DEFAULT_INTERVAL_SECONDS,
    ) -> None:
        if peak_flops is not None and not 0 < peak_flops < math.inf:
            raise ValueError(f"peak_flops must be positive, not {peak_flops}")
        if total_steps is not None and total_steps < 0:
            raise ValueError(f"total_steps must be from 0 on, not {total_steps}")
        if gemm_interval_seconds != 0 and not 10 <= gemm_interval_seconds < math.inf:
            raise ValueError(f"gemm_interval_seconds must be 0 or from 10 on, not {gemm_interval_seconds}")
        at = endpoint.configured_port(port, os.environ)
        self._device = _device(device)
        process = ProcessInfo.of(os.environ)
        self._rank = process.rank
        self._total_steps, self._peak_flops = total_steps, peak_flops
        self._compute = ComputeTimer(compute_phases, self._device)
        # Elsewhere, the time of the forward pass tells more.
        timed = gemm_interval_seconds and self._device.type == "cuda" and "forward" not in compute_phases
        self._gemm = GemmTimer(self._device, gemm_interval_seconds) if timed else None
        agent_package = agent()
        self._progress: Callable[..., None] = agent_package.progress if agent_package else _no_agent
        # An older package of the agent may accept fewer values, or steps alone.
        self._measures: Collection[str] = getattr(agent_package, "MEASURED", ())
        self._meter = Meter()
        self._loss, self._grad_norm = DeferredScalars(), DeferredScalars()
        self._loss_share = 1.0
        self._loss_not_finite = False
        self._flops: float | None = None
        self._peak: float | None = None
        self._number_format, self._has_own_format = "bf16", False
        self._step, self._done_at = 0, time.time()
        self._checkpoint: tuple[int, float, float] | None = None
        self._published: RankMetrics | None = None
        self._publish_at = 0.0
        self._profiler = Profiler(profiler or ProfilerConfig(), self._rank)
        self.observers: list[tuple[int, Callable[[RankMetrics], None]]] = []
        self._metrics_store: metrics_store.MetricsStore | None = None
        self._end: Callable[[], None] | None = None
        if at:
            if process.local_world_size > 1:
                self._metrics_store = metrics_store.MetricsStore(metrics_store.store_folder(os.environ), self._rank)
            if process.local_rank == 0:
                self._end = endpoint.serve(at, self._pod_metrics)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Count the time inside for a phase: data, forward, backward, optimizer, communication, checkpoint, evaluate or compile.

        Phases nest, and time counts for the innermost. Everything inside one of the last three belongs to it; the agent then expects no steps.

        Raises:
            ValueError: the phase is unknown. It is raised when the phase is entered.
        """
        return Phase(name, self._meter, self._profiler, self._compute, self._progress)

    def step(
        self,
        step: int,
        *,
        samples: int = 0,
        tokens: int = 0,
        loss: float | torch.Tensor | None = None,
        loss_share: float = 1.0,
        grad_norm: float | torch.Tensor | None = None,
    ) -> None:
        """Record a finished step. Each process calls it after each step.

        Args:
            step: the number of the step, from 0 on.
            samples: the samples of this process in the step. Processes that share samples (tensor parallelism) pass their share, or one
                of them passes all: the sum over processes must be correct.
            tokens: as for samples.
            loss: the loss of this process. A tensor on a GPU is read asynchronously, and reported some steps later.
            loss_share: its weight in the mean over the processes: their share of the samples, relative to the mean.
            grad_norm: the norm of the whole gradient, as `clip_grad_norm_` returns it; read like the loss.

        Raises:
            TypeError: `step`, `samples` or `tokens` is not an integer.
            ValueError: a number is negative, or a tensor does not have exactly one element.
        """
        # numpy's integers cannot be written as JSON.
        step, samples, tokens = operator.index(step), operator.index(samples), operator.index(tokens)
        if step < 0:
            raise ValueError(f"step must be from 0 on, got {step}")
        self._loss.put("loss", loss)
        self._loss_share = loss_share
        self._grad_norm.put("grad_norm", grad_norm)
        self._warn(step)
        computed = self._compute.stepped(self._meter.step(samples, tokens), first=self._meter.steps == 1)
        for seconds in computed:
            self._meter.computed(seconds)
        self._step, self._done_at = step, time.time()
        fresh = self._publish()
        more = {"measured": self._measured(fresh)} if fresh and self._measures else {}
        self._progress(
            step,
            total=self._total_steps,
            loss=self._loss.newest,
            compute_seconds=computed[-1] if computed else None,
            **more,
        )
        self._profiler.step(step)
        if self._gemm:
            self._gemm.step(self._done_at)
        for every, observe in self.observers:
            if step % every == 0:
                observe(self.snapshot())

    def _warn(self, step: int) -> None:
        """Warn once per series of losses that are not finite.

        Only the loss counts: with fp16, gradients that are not finite are normal, and skipped.
        """
        loss = self._loss.newest
        not_finite = loss is not None and not math.isfinite(loss)
        if not_finite and not self._loss_not_finite:
            logger.warning(
                "step %d: the loss is %s: resume from the last checkpoint, for example with a lower learning rate",
                step,
                loss,
            )
        self._loss_not_finite = not_finite

    def record_checkpoint(self, step: int, seconds: float) -> None:
        """Record that a checkpoint of this step was committed, and its duration. Call it on rank 0, from any thread; `Loop` does so.

        Raises:
            TypeError: `step` is not an integer.
            ValueError: a number is negative or not finite.
        """
        step = operator.index(step)
        if step < 0 or not 0 <= seconds < math.inf:
            raise ValueError(f"step and seconds must be from 0 on, got {step} and {seconds}")
        self._checkpoint = (step, seconds, time.time())

    def set_flops(self, flops: float, number_format: str | None = None) -> None:
        """Set the floating-point operations of this process per step (`flops.counted`, `flops.transformer`): enables MFU.

        If the device's peak is unknown, there is no MFU, and a warning is logged.

        Args:
            flops: the operations.
            number_format: the format of matrix products, whose peak counts. None: that of `Loop`, and bf16 without one.

        Raises:
            ValueError: it is not a positive number.
        """
        if not 0 < flops < math.inf:
            raise ValueError(f"flops must be positive, got {flops}")
        self._flops, self._has_own_format = flops, number_format is not None
        self._find_peak(number_format or self._number_format)

    def computes_in(self, number_format: str) -> None:
        """Take the peak of this format for MFU, unless `set_flops` names another one. `Loop` calls it with that of its `Precision`."""
        self._number_format = number_format
        if self._flops is not None and not self._has_own_format:
            self._find_peak(number_format)

    def _find_peak(self, number_format: str) -> None:
        # gpu-only: the name of the device
        name = torch.cuda.get_device_name(self._device) if self._device.type == "cuda" else "CPU"
        self._peak = self._peak_flops or flop.peak(name, number_format)
        if self._peak is None:
            logger.warning(
                "no MFU: the peak in %s of a device named %r is not known; pass peak_flops to Monitor",
                number_format,
                name,
            )

    def snapshot(self) -> RankMetrics:
        """Return the current metrics of this process."""
        throughput, totals, seen = self._meter.throughput(), self._meter.totals, self._profiler.communication
        stored = self._checkpoint
        mfu = None
        if self._flops and self._peak and throughput.steps_per_second:
            mfu = flop.utilisation(self._flops, 1 / throughput.steps_per_second, self._peak)
        return RankMetrics(
            rank=self._rank,
            step=self._step,
            time=self._done_at,
            steps=self._meter.steps,
            samples=self._meter.samples,
            tokens=self._meter.tokens,
            phases={phase: seconds for phase, seconds in totals.items() if seconds > 0},
            memory=memory(self._device),
            step_seconds=throughput.step_seconds,
            compute_seconds=throughput.compute_seconds,
            gemm_seconds=self._gemm.seconds if self._gemm else None,
            steps_per_second=throughput.steps_per_second,
            samples_per_second=throughput.samples_per_second,
            tokens_per_second=throughput.tokens_per_second,
            shares=throughput.shares,
            mfu=mfu,
            loss=self._loss.newest,
            grad_norm=self._grad_norm.newest,
            loss_share=self._loss_share,
            communication=seen.ratio if seen else None,
            exposed_communication=seen.exposed if seen else None,
            checkpoint_step=stored[0] if stored else None,
            checkpoint_seconds=stored[1] if stored else None,
            checkpoint_time=stored[2] if stored else None,
        )

    def close(self) -> None:
        """Stop the endpoint, and wait for a trace that is being written."""
        self._profiler.close()
        if self._end:
            self._end()
            self._end = None
        if self._metrics_store:
            self._metrics_store.close()

    def _publish(self) -> RankMetrics | None:
        """Publish a new snapshot if the interval has passed, and return it."""
        now = time.monotonic()
        if now < self._publish_at:
            return None
        self._publish_at = now + PUBLISH_SECONDS
        self._published = self.snapshot()
        if self._metrics_store:
            self._metrics_store.put(self._published)
        return self._published

    def _measured(self, snapshot: RankMetrics) -> dict[str, float]:
        """Return the measurements that the agent's package knows."""
        found = snapshot.measured
        return {name: found[name] for name in found if name in self._measures}

    def _pod_metrics(self) -> list[RankMetrics]:
        """Return the metrics of all ranks of the pod. The endpoint's thread calls it."""
        mine = [self._published] if self._published else []
        return mine + (self._metrics_store.others() if self._metrics_store else [])


def _device(given: torch.device | str | None) -> torch.device:
    """Return the device without an index: the current GPU is looked up when it is used, so that none is initialized here."""
    if given is not None:
        return torch.device(given)
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _no_agent(*_: object, **__: object) -> None:
    """Stand-in for the agent's `progress` if its package is not installed."""
