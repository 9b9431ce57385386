"""The time in which a rank computes by itself, on a pretend GPU: it holds no wait for other ranks. And the speed of the GPU alone."""

import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from tests.library.support.processes import run
from tests.library.support.programs import free_port
from trainyard_torch import Batches, Loader, Loop, SampleOrder, Step, replicate, start
from trainyard_torch.monitoring import gemm_timer
from trainyard_torch.monitoring.compute_time import MAX_SPANS
from trainyard_torch.monitoring.gemm_timer import (
    MAX_PRODUCTS,
    PRODUCT_FLOPS,
    REMEMBERED,
    UNIT_FLOPS,
    GemmTimer,
    products,
)
from trainyard_torch.monitoring.monitor import Monitor
from trainyard_torch.monitoring.profiler import ProfilerConfig
from trainyard_torch.parallel.gradients import GradientSync
from trainyard_torch.precision import Precision

SMALL = 2
"""Rows of the pretend GPU's matrices."""


class Gpu:
    """A stream that takes the given time. Its events know it at once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.milliseconds, self.events = 0.0, 0
        monkeypatch.setattr(torch.cuda, "Event", self._event)

    def work(self, milliseconds: float) -> None:
        self.milliseconds += milliseconds

    def _event(self, **_: Any) -> Any:
        self.events += 1
        event = SimpleNamespace(query=lambda: True)
        event.record = lambda: setattr(event, "at", self.milliseconds)
        event.elapsed_time = lambda end: end.at - event.at
        return event


def monitor(**settings: Any) -> Monitor:
    return Monitor(device="cuda", profiler=ProfilerConfig(signal=False), **settings)


def rank(gpu: Gpu, forward: float, *, slowest: float, micro_batches: int = 2) -> float | None:
    """Return the own seconds of a rank whose forward passes take so long. Its backward passes wait for the slowest rank."""
    mine, weight = monitor(compute_phases=("forward",)), torch.ones(1, requires_grad=True)
    for number in range(1, 4):
        parts: Any = [
            SimpleNamespace(weight=1 / micro_batches, last=last, batch=number)
            for last in [False] * (micro_batches - 1) + [True]
        ]
        step = Step(number, parts, GradientSync(nn.Identity()), Precision(None, torch.device("cpu")), mine)
        for _ in step:
            gpu.work(forward)
            loss = weight.sum()
            loss.register_hook(lambda _: gpu.work(20 + slowest - forward))
            step.backward(loss)
            with mine.phase("communication"):
                gpu.work(500)
            gpu.work(1)
        gpu.work(7)
        mine.step(number)
    return mine.snapshot().compute_seconds


def test_ranks_that_wait_are_not_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Gpu(monkeypatch)
    own = [rank(gpu, forward, slowest=90) for forward in (30, 30, 90)]
    assert own == [pytest.approx(0.062), pytest.approx(0.062), pytest.approx(0.182)]


def test_evaluation_within_a_phase_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, mine = Gpu(monkeypatch), monitor()
    for number in range(3):
        with mine.phase("forward"):
            gpu.work(10)
            with mine.phase("evaluate"), mine.phase("forward"):
                gpu.work(1000)
            gpu.work(5)
        mine.step(number)
    assert mine.snapshot().compute_seconds == pytest.approx(0.015, abs=0.001)


def test_phase_with_an_error_ends_its_span(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, mine = Gpu(monkeypatch), monitor()
    for number in range(3):
        with pytest.raises(KeyError), mine.phase("forward"), mine.phase("backward"):
            raise KeyError
        gpu.work(1000)
        with mine.phase("forward"):
            gpu.work(10)
        mine.step(number)
    assert mine.snapshot().compute_seconds == pytest.approx(0.01, abs=0.001)


def test_number_of_spans_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, mine = Gpu(monkeypatch), monitor()
    with mine.phase("forward"):
        for _ in range(2 * MAX_SPANS):
            with mine.phase("backward"):
                pass
    assert gpu.events == 2 * MAX_SPANS


class Device(Gpu):
    """A pretend H100 that multiplies matrices at a share of its usual speed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, share: float = 1.0) -> None:
        super().__init__(monkeypatch)
        self.share, self.products, self.is_full = share, 0, False
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: "NVIDIA H100 80GB HBM3")
        monkeypatch.setattr(torch, "linspace", self._matrix)
        monkeypatch.setattr(torch, "mm", self._mm)

    def _matrix(self, *_: Any, device: torch.device, **__: Any) -> Any:
        assert device.type == "cuda"
        if self.is_full:
            raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate 32.00 MiB")
        return torch.ones(SMALL * SMALL)

    def _mm(self, *_: Any, **__: Any) -> None:
        self.products += 1
        self.work(PRODUCT_FLOPS / (self.share * 600e12) * 1000)

    def seconds(self, timer: GemmTimer, periods: int = REMEMBERED + 1) -> float | None:
        """Return the time that is known after so many minutes."""
        for second in range(60 * periods):
            timer.step(1000.0 + second)
        return timer.seconds


@pytest.fixture
def small_matrices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gemm_timer, "SIZE", SMALL)


def timer(interval: float = 60) -> GemmTimer:
    return GemmTimer(torch.device("cuda"), interval)


@pytest.mark.usefixtures("small_matrices")
@pytest.mark.parametrize("share", [1.0, 0.5])
def test_slow_gpu_takes_longer_for_the_same_products(monkeypatch: pytest.MonkeyPatch, share: float) -> None:
    device = Device(monkeypatch, share)
    assert device.seconds(timer()) == pytest.approx(UNIT_FLOPS / 600e12 / share)
    assert device.milliseconds / (REMEMBERED + 1) == pytest.approx(100 / share, rel=0.05), "a tenth of a second each"
    assert device.products == (REMEMBERED + 1) * products(989.4e12)


@pytest.mark.usefixtures("small_matrices")
def test_one_disturbed_time_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    device, mine = Device(monkeypatch), timer()
    assert device.seconds(mine, REMEMBERED - 1) is None
    device.share = 0.1
    mine.step(1000 + 60 * REMEMBERED)
    device.share = 1.0
    mine.step(1000 + 60 * (REMEMBERED + 1))
    assert mine.seconds == pytest.approx(UNIT_FLOPS / 600e12)


@pytest.mark.usefixtures("small_matrices")
def test_ranks_time_after_the_same_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whenever they started: otherwise the group would wait for each of them."""
    device, ranks = Device(monkeypatch), [timer(), timer()]
    timed: list[list[int]] = [[], []]
    for step in range(300):
        for rank, mine in enumerate(ranks):
            before = device.products
            if step >= 17 * rank:
                mine.step(1000 + step + 0.001 * rank)
            if device.products > before:
                timed[rank].append(step)
    assert timed[0] == timed[1] == [20, 80, 140, 200, 260]


@pytest.mark.usefixtures("small_matrices")
def test_full_memory_ends_the_products_alone(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    device, mine = Device(monkeypatch), timer()
    device.is_full = True
    assert device.seconds(mine) is None
    device.is_full = False
    assert device.seconds(mine) is None
    assert caplog.messages == ["no matrix products are timed any more: CUDA out of memory."]


@pytest.mark.usefixtures("small_matrices")
@pytest.mark.parametrize("phases", [("data",), ()], ids=["FSDP", "a pipeline"])
def test_monitor_times_products_where_passes_wait(monkeypatch: pytest.MonkeyPatch, phases: tuple[str, ...]) -> None:
    device, mine, off, spans = (
        Device(monkeypatch),
        monitor(compute_phases=phases),
        monitor(compute_phases=phases, gemm_interval_seconds=0),
        monitor(),
    )
    monkeypatch.setattr("time.time", iter(range(1000, 10**6, 60)).__next__)
    for step in range(REMEMBERED + 2):
        for each in (mine, off, spans):
            each.step(step)
    reading = mine.snapshot()
    assert reading.gemm_seconds == pytest.approx(UNIT_FLOPS / 600e12)
    assert reading.measured["gemm_seconds"] == reading.gemm_seconds
    assert (off.snapshot().gemm_seconds, spans.snapshot().gemm_seconds) == (None, None)
    assert device.products % products(989.4e12) == 0


def test_unknown_device_multiplies_less() -> None:
    assert 1 < products(None) < products(312e12) < products(989.4e12) < products(1e18) == MAX_PRODUCTS


def with_buffers(port: int) -> tuple[float, float, int]:
    """Return the own seconds, the seconds of collectives, and the rank of one of two ranks. Rank 0 is late with each step."""
    dist.destroy_process_group()
    os.environ["MASTER_PORT"] = str(port)
    samples = [(torch.ones(4), torch.ones(4)) for _ in range(16)]
    with start() as training:
        model = replicate(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), training.mesh)
        data = Loader(
            samples, Batches(SampleOrder(16, seed=1), 4, micro_batch_size=2), training.data_shard, num_workers=0
        )
        loop = Loop(training, model, torch.optim.SGD(model.parameters(), lr=0.1), data, total_steps=4)
        assert loop._compute_phases() == ("data", "forward")
        for step in loop:
            if training.is_rank0:
                time.sleep(0.3)
            for inputs, targets in step:
                step.backward((model(inputs) - targets).square().mean())
        reading = loop.monitor.snapshot()
    return reading.compute_seconds or 0.0, reading.phases["communication"], training.process.rank


def test_forward_pass_without_the_wait_for_buffers(tmp_path: Path) -> None:
    (late, _, _), (waits, exchanged, rank) = run(2, tmp_path, with_buffers, free_port())
    assert rank == 1
    assert max(late, waits) < 0.15
    assert exchanged > 0.5


def test_layers_that_exchange_are_no_own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "TRAINYARD_PARALLELISM"):
        monkeypatch.delenv(name, raising=False)
    with start() as training:
        model = nn.Sequential(nn.Linear(4, 4), nn.SyncBatchNorm(4))
        data = Loader(
            [torch.ones(4)] * 4,
            Batches(SampleOrder(4, seed=1), 4, micro_batch_size=4),
            training.data_shard,
            num_workers=0,
        )
        loop = Loop(training, model, torch.optim.SGD(model.parameters(), lr=0.1), data, total_steps=1)
        assert loop._compute_phases() == ("data",)
