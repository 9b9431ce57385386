"""What can only be seen on a GPU: that nothing waits for it, and what it is asked for."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from trainyard_torch.monitoring.flops import peak
from trainyard_torch.monitoring.gemm_timer import GemmTimer
from trainyard_torch.monitoring.monitor import Monitor
from trainyard_torch.monitoring.profile_request import ProfileRequest
from trainyard_torch.monitoring.profiler import NsightWindow, ProfilerConfig

pytestmark = pytest.mark.gpu


@pytest.fixture
def waiting_is_an_error() -> Iterator[None]:
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    yield
    torch.cuda.set_sync_debug_mode("default")


def train(monitor: Monitor, steps: int) -> None:
    weights = torch.ones(512, 512, device="cuda")
    for step in range(steps):
        with monitor.phase("forward"):
            product = weights @ weights
        monitor.step(step, samples=1, loss=product[0, 0], grad_norm=product[0, :1])


@pytest.mark.usefixtures("waiting_is_an_error")
def test_a_step_waits_for_nothing() -> None:
    monitor = Monitor(profiler=ProfilerConfig(signal=False))
    train(monitor, 50)
    torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    reading = monitor.snapshot()
    assert (reading.loss, reading.grad_norm) == (512, 512)
    train(monitor, 3)
    torch.cuda.synchronize()
    train(monitor, 1)
    own = monitor.snapshot().compute_seconds
    assert own
    assert 0 < own < 1
    assert reading.memory["peak"] >= reading.memory["allocated"] >= 512 * 512 * 4


@pytest.mark.usefixtures("waiting_is_an_error")
def test_timing_matrix_products_waits_for_nothing() -> None:
    timer = GemmTimer(torch.device("cuda"), interval=10)
    for period in range(5):
        timer.step(10.0 * period)
        torch.cuda.set_sync_debug_mode("default")
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
    seconds = timer.seconds
    assert seconds
    assert 0.01 < seconds < 60


def test_a_profile_has_the_kernels(tmp_path: Path) -> None:
    monitor = Monitor(profiler=ProfilerConfig(signal=False, folder=tmp_path))
    monitor._profiler._requests._request = ProfileRequest(2)
    train(monitor, 5)
    monitor.close()
    (trace,) = tmp_path.iterdir()
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    assert [event for event in events if event.get("cat") == "kernel"]
    assert monitor.snapshot().exposed_communication == 0


@pytest.mark.usefixtures("waiting_is_an_error")
def test_a_capture_of_nsight_waits_for_nothing() -> None:
    """Without nsys no profiler listens."""
    window = NsightWindow(2)
    with window.marked("forward"):
        torch.ones(8, device="cuda").add_(1)
    assert [window.step(), window.step()] == [False, True]
    NsightWindow(1).abandon()


def test_device_peak_is_found_by_its_name() -> None:
    monitor = Monitor(profiler=ProfilerConfig(signal=False))
    monitor.set_flops(1e9)
    train(monitor, 5)
    assert (monitor.snapshot().mfu is None) == (peak(torch.cuda.get_device_name()) is None)
