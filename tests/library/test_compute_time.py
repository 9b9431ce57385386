"""The time in which a rank computes by itself, on a pretend GPU: it holds no wait for other ranks."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from trainyard_torch.loop import Step
from trainyard_torch.monitoring.compute_time import MAX_SPANS
from trainyard_torch.monitoring.monitor import Monitor
from trainyard_torch.monitoring.profiler import ProfilerConfig
from trainyard_torch.parallel.gradients import GradientSync
from trainyard_torch.precision import Precision


class Gpu:
    """A stream that takes the time that it is told. Its events know it at once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.milliseconds, self.events = 0.0, 0
        monkeypatch.setattr(torch.cuda, "Event", self._event)

    def work(self, milliseconds: float) -> None:
        self.milliseconds += milliseconds

    def _event(self, **_: Any) -> Any:
        self.events += 1
        event = SimpleNamespace(query=lambda: True, elapsed_time=lambda end: end.at - event.at)
        event.record = lambda: setattr(event, "at", self.milliseconds)
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
