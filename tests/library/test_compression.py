"""Gradients in fewer bytes: the same training, near enough; and with PowerSGD the same bits after a restart."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
from torch.nn.parallel import DistributedDataParallel

from tests.library.support.processes import run
from trainyard_torch.communication.compression import compress
from trainyard_torch.communication.powersgd import PowerSGD
from trainyard_torch.precision import Precision

SAMPLES = 12
EARLY = PowerSGD(rank=2, start_step=3)
PARAMETERS = 16 * 40 + 40 + 40 * 24 + 24 + 24 * 4 + 4


class Training:
    """As one rank sees it. Its buckets are small, so that there are several."""

    def __init__(self, how: Any, dtype: torch.dtype = torch.float32, *, fixed: bool = False) -> None:
        torch.manual_seed(7)
        layers = (nn.Linear(16, 40), nn.Tanh(), nn.Linear(40, 24), nn.Tanh(), nn.Linear(24, 4))
        network = nn.Sequential(*layers).to(dtype)
        self.model = DistributedDataParallel(network, bucket_cap_mb=0.004, find_unused_parameters=fixed)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.compression = compress(self.model, how)
        self.dtype = dtype

    def train(self, first: int, last: int) -> "Training":
        for step in range(first, last):
            self.optimizer.zero_grad()
            self.loss(step, slice(dist.get_rank(), SAMPLES, dist.get_world_size())).backward()
            self.optimizer.step()
        return self

    def loss(self, step: int, mine: slice) -> torch.Tensor:
        mixed = torch.Generator().manual_seed(step)
        x, y = (torch.randn(SAMPLES, width, generator=mixed, dtype=torch.float64).to(self.dtype) for width in (16, 4))
        return nn.functional.mse_loss(self.model(x[mine]), y[mine])

    def save(self, folder: str) -> "Training":
        dcp.save(self.state(), checkpoint_id=folder)
        return self

    def load(self, folder: str) -> "Training":
        state = self.state()
        dcp.load(state, checkpoint_id=folder)
        set_optimizer_state_dict(self.model, self.optimizer, state["optimizer"])
        return self

    def state(self) -> dict[str, Any]:
        return {
            "model": self.model.module,
            "optimizer": get_optimizer_state_dict(self.model, self.optimizer),
            "compression": self.compression,
        }

    @property
    def weights(self) -> np.ndarray:
        return torch.cat([value.detach().double().flatten() for value in self.model.parameters()]).numpy()


def hooked(hows: list[Any]) -> list[tuple[np.ndarray, int, int]]:
    runs = [Training(how).train(0, 8) for how in hows]
    return [(each.weights, each.compression.sent_bytes, each.compression.full_bytes) for each in runs]


def test_half_the_bytes_and_nearly_the_same_model(tmp_path: Path) -> None:
    (full, halved, brain, low), *_ = run(2, tmp_path, hooked, ["none", "fp16", "bf16", EARLY])
    assert full[1] == full[2] == halved[2] == low[2] == 8 * 4 * PARAMETERS
    assert halved[1] == brain[1] == full[1] // 2
    assert np.allclose(full[0], halved[0], atol=1e-3)
    assert np.allclose(full[0], brain[0], atol=1e-2)
    assert not np.array_equal(full[0], halved[0])
    # From the fourth step on: two factors of rank 2 for the first two matrices, the rest as it is.
    factors = 2 * (16 + 40 + 40 + 24) + 40 + 24 + 24 * 4 + 4
    assert low[1] == 4 * (3 * PARAMETERS + 5 * factors)


def plain() -> bool:
    hooked, bare = Training("none").train(0, 4), Training("none")
    bare.model = DistributedDataParallel(bare.model.module)
    return np.array_equal(hooked.weights, bare.train(0, 4).weights)


def test_none_is_what_ddp_does_without(tmp_path: Path) -> None:
    assert all(run(2, tmp_path, plain))


def resumed(folder: str, how: PowerSGD, *layout: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    never_saved = Training(how, fixed=bool(layout)).train(0, 10)
    undisturbed = Training(how, fixed=bool(layout)).train(0, 6).save(folder).train(6, 10)
    after = Training(how, fixed=bool(layout)).load(folder).train(6, 10)
    return never_saved.weights, undisturbed.weights, after.weights


@pytest.mark.parametrize("start", [3, 6, 8])
def test_a_resumed_run_has_the_same_bits(tmp_path: Path, start: int) -> None:
    for never_saved, undisturbed, after in run(2, tmp_path, resumed, str(tmp_path / "c"), PowerSGD(2, start)):
        assert np.array_equal(undisturbed, after)
        assert np.allclose(undisturbed, never_saved, atol=1e-5), "saving changes no more than the last digits"


def test_three_ranks_match_bitwise_with_unchanged_buckets(tmp_path: Path) -> None:
    for _, undisturbed, after in run(3, tmp_path, resumed, str(tmp_path / "c"), EARLY, "fixed"):
        assert np.array_equal(undisturbed, after)


# Where epsilon is added to a sum over processes, it counts for less the more there are.
EXACT = PowerSGD(rank=2, start_step=3, epsilon=0)


def begun(folder: str) -> np.ndarray:
    return Training(EXACT, torch.float64).train(0, 6).save(folder).train(6, 12).weights


def gone_on(folder: str) -> tuple[np.ndarray, np.ndarray, list[str]]:
    logger = logging.getLogger("trainyard_torch.communication.powersgd")
    message: list[str] = []

    def caught(record: logging.LogRecord) -> bool:
        message.append(record.getMessage())
        return False

    logger.addFilter(caught)
    reset = Training(EXACT, torch.float64).load(folder)
    reset.compression.reset()
    return Training(EXACT, torch.float64).load(folder).train(6, 12).weights, reset.train(6, 12).weights, message


@pytest.mark.parametrize("world_size", [1, 3, 4])
def test_another_number_of_processes_goes_on_alike(tmp_path: Path, world_size: int) -> None:
    folder = str(tmp_path / "c")
    expected = run(2, tmp_path, begun, folder)[0]
    for rank, (found, reset, message) in enumerate(run(world_size, tmp_path, gone_on, folder)):
        assert np.allclose(found, expected, rtol=0, atol=1e-11)
        assert not np.allclose(reset, expected, rtol=0, atol=1e-5), "what a reset loses would be seen"
        sentence = (
            f"PowerSGD continues with {world_size} processes instead of 2: each starts with the mean of all errors"
        )
        assert message == ([sentence] * 2 if rank == 0 else [])


def fed_back() -> tuple[float, float]:
    """How far the mean of what was applied is from the mean of the gradients, without and with what PowerSGD remembers."""
    far = []
    for forgets in (True, False):
        one = Training(PowerSGD(rank=1, start_step=2), torch.float64)
        applied, true = torch.zeros(PARAMETERS).double(), torch.zeros(PARAMETERS).double()
        for step in range(40):
            one.model.zero_grad()
            one.loss(step % 5, slice(0, SAMPLES)).backward()
            applied += torch.cat([value.grad.flatten() for value in one.model.parameters() if value.grad is not None])
            one.model.zero_grad()
            with one.model.no_sync():
                one.loss(step % 5, slice(0, SAMPLES)).backward()
            true += torch.cat([value.grad.flatten() for value in one.model.parameters() if value.grad is not None])
            if forgets:
                one.compression.reset()
        far.append(float((applied - true).norm() / true.norm()))
    return far[0], far[1]


def test_what_was_lost_is_made_up_for(tmp_path: Path) -> None:
    forgetting, remembering = run(1, tmp_path, fed_back)[0]
    assert remembering < 0.2 * forgetting


def accumulated() -> tuple[int, np.ndarray]:
    one = Training("fp16", torch.float64)
    half = SAMPLES // 2
    for step in range(3):
        one.optimizer.zero_grad()
        with one.model.no_sync():
            (one.loss(step, slice(0, half)) / 2).backward()
        (one.loss(step, slice(half, SAMPLES)) / 2).backward()
        one.optimizer.step()
    return one.compression.sent_bytes, one.weights


def test_accumulation_sends_once_a_step(tmp_path: Path) -> None:
    assert run(1, tmp_path, accumulated)[0][0] == 3 * 2 * PARAMETERS


def refused() -> list[str]:
    class Scalar(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(1.0))

    once = Training("bf16").model
    message = []
    for model, how in [
        (nn.Linear(2, 2), "bf16"),
        (once, "bf16"),
        (DistributedDataParallel(nn.Linear(2, 2)), "fp8"),
        (DistributedDataParallel(Scalar()), "powersgd"),
    ]:
        with pytest.raises(ValueError, match=r".") as found:
            compress(model, how)  # type: ignore[arg-type]  # that is the test
        message.append(str(found.value))
    state = Training(EARLY).compression.state_dict()
    with pytest.raises(ValueError, match="rank 2, and this run has rank 3"):
        Training(PowerSGD(rank=3)).compression.load_state_dict(state)
    del state["errors"]["0.bias"]
    with pytest.raises(ValueError, match=r"of another model: 0\.bias is in one"):
        Training(EARLY).compression.load_state_dict(state)
    return message


def test_what_cannot_be_compressed_is_reported(tmp_path: Path) -> None:
    plain, twice, how, scalar = run(1, tmp_path, refused)[0]
    assert "wrapped in DistributedDataParallel, got a Linear: with FSDP2" in plain
    assert "no (other) communication hook" in twice
    assert "one of none, fp16, bf16, powersgd, or a PowerSGD, got 'fp8'" in how
    assert "scale is a scalar" in scalar


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"rank": 0}, "rank"),
        ({"start_step": 1}, "start_step must be from 2"),
        ({"min_compression_rate": float("nan")}, "min_compression_rate"),
    ],
)
def test_options_that_make_no_sense(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PowerSGD(**wrong)


def overflown(how: Any) -> tuple[list[int], float]:
    """In which steps fp16 was too small for the scaled loss, and the last loss."""
    torch.manual_seed(1)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)))
    optimizer, precision = (
        torch.optim.SGD(model.parameters(), lr=0.01),
        Precision("fp16", torch.device("cpu"), init_scale=2.0**10, growth_interval=3),
    )
    compress(model, how)
    left_out, loss = [], torch.zeros(())
    for step in range(150):
        x = torch.randn(16, 64, generator=torch.Generator().manual_seed(step))
        with precision.autocast():
            loss = (model(x).float() - x).square().mean()
        precision.backward(loss)
        if not precision.step(optimizer):
            left_out.append(step)
        optimizer.zero_grad()
    return left_out, float(loss.detach())


def test_step_with_too_large_loss_scale_is_skipped(tmp_path: Path) -> None:
    """Of its gradients, which are infinite, nothing stays in the errors and factors."""
    for plain, compressed in zip(run(2, tmp_path, overflown, "none"), run(2, tmp_path, overflown, EARLY), strict=True):
        assert 0 < len(compressed[0]) < 2 * len(plain[0])
        assert compressed[1] == pytest.approx(plain[1], rel=0.1)
