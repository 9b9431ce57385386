"""What can only be seen on a GPU: that nothing waits for it, and what it is asked for."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from trainyard_torch.watch.profile import Capture
from trainyard_torch.watch.request import Wish
from trainyard_torch.watch.watch import Watch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="a machine without a GPU")


@pytest.fixture
def waiting_is_an_error() -> Iterator[None]:
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    yield
    torch.cuda.set_sync_debug_mode("default")


def train(watch: Watch, steps: int) -> None:
    weights = torch.ones(512, 512, device="cuda")
    for step in range(steps):
        with watch.phase("forward"):
            product = weights @ weights
        watch.step(step, samples=1, loss=product[0, 0], grad_norm=product[0, :1])


@pytest.mark.usefixtures("waiting_is_an_error")
def test_a_step_waits_for_nothing() -> None:
    watch = Watch(capture=Capture(signal=False))
    train(watch, 50)
    torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    reading = watch.reading()
    assert (reading.loss, reading.grad_norm) == (512, 512)
    train(watch, 3)
    torch.cuda.synchronize()
    train(watch, 1)
    own = watch.reading().own_seconds
    assert own
    assert 0 < own < 1
    assert reading.memory["peak"] >= reading.memory["allocated"] >= 512 * 512 * 4


def test_a_profile_has_the_kernels(tmp_path: Path) -> None:
    watch = Watch(capture=Capture(signal=False, folder=tmp_path))
    watch._profiler._requests._wish = Wish(2)
    train(watch, 5)
    watch.close()
    (trace,) = tmp_path.iterdir()
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    assert [event for event in events if event.get("cat") == "kernel"]
    assert watch.reading().exposed_communication == 0
