"""A training on a GPU, in one process: the device, both backends, batches through pinned memory, and a checkpoint that it goes on from."""

import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

from tests.library.support.programs import started
from trainyard_torch import Batches, Checkpoints, DataShard, Loader, Loop, SampleOrder, replicate, start

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "TRAINYARD_PARALLELISM"):
        monkeypatch.delenv(name, raising=False)


def train(folder: Path, until: int) -> list[float]:
    """The loss of each step."""
    losses = []
    with start(seed=1) as training:
        assert training.device == torch.device("cuda", 0)
        for device in ("cuda", "cpu"):
            sent = torch.ones(1, device=device)
            dist.all_reduce(sent)
            assert float(sent) == 1
        samples = [(torch.randn(8), torch.ones(1)) for _ in range(64)]
        model = replicate(nn.Linear(8, 1).to(training.device), training.mesh)
        loop = Loop(
            training,
            model,
            torch.optim.AdamW(model.parameters(), lr=0.05),
            Loader(
                samples,
                Batches(SampleOrder(64, seed=1), 16, micro_batch_size=4),
                training.data_shard,
                device=training.device,
            ),
            total_steps=until,
            checkpoints=Checkpoints(str(folder), mesh=training.mesh),
            max_grad_norm=1.0,
        )
        for step in loop:
            for inputs, targets in step:
                assert inputs.is_cuda
                step.backward(nn.functional.mse_loss(model(inputs), targets))
            assert step.loss is not None
            losses.append(float(step.loss))
        has_tf32 = torch.cuda.get_device_capability() >= (8, 0)
        assert torch.get_float32_matmul_precision() == ("high" if has_tf32 else "highest")
    return losses


FAILS = """
import threading
import torch
from trainyard_torch import start
with start() as training:
    threading.Thread(target=threading.Event().wait).start()
    # Some seconds of a kernel that spins.
    torch.cuda._sleep(20_000_000_000)
    raise ValueError("the loss is lost")
"""


def test_an_exception_ends_the_process_soon(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(FAILS)
    with started(tmp_path / "program.py", 1) as (rank,):
        began = time.monotonic()
        _, errors = rank.communicate(timeout=120)
        assert (rank.returncode, "ValueError: the loss is lost" in errors) == (1, True)
        assert time.monotonic() - began < 60


def test_a_training_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    whole = train(tmp_path / "whole", 8)
    assert len(whole) == 8
    assert whole[-1] < whole[0]
    assert train(tmp_path / "parts", 4) + train(tmp_path / "parts", 8) == pytest.approx(whole, rel=1e-4)


def test_batches_come_through_pinned_memory() -> None:
    with Loader(
        [torch.ones(4)] * 8, Batches(SampleOrder(8), 4, micro_batch_size=4), DataShard(0, 1), device="cuda"
    ) as loader:
        (loaded,) = loader._load(loader.batches)
        assert loaded.batch.is_pinned()
        (part,) = next(loader)
        assert part.batch.device == torch.device("cuda", torch.cuda.current_device())
