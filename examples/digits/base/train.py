# ruff: noqa: INP001, T201 - a user's program: it is run, not imported, and it prints
"""Train a small CNN on handwritten digits with DistributedDataParallel. Plain PyTorch: any torch launcher runs it.

    torchrun --nproc-per-node=3 train.py --checkpoints /tmp/digits

Rank 0 writes a checkpoint every --checkpoint-every steps. On start, all ranks resume from the newest readable checkpoint,
so a restart loses only the steps since then. The order of the images depends only on the epoch, so a resumed run sees
the same batches as an uninterrupted run.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import math
import os
import sys
import time
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

try:
    from trainyard_agent import SAVED, must_stop, progress
except ImportError:  # the Trainyard agent does not run this process
    SAVED = 90

    def must_stop(_: int) -> bool:
        """Return whether all ranks must stop after this step."""
        return False

    def progress(step: int, *, total: int, loss: float | None) -> None:
        """Report the progress of this rank."""


if TYPE_CHECKING:
    from collections.abc import Iterator

PIXELS = 64
TEST_ROWS = 360  # the last rows of the file; all others are for training
KEPT_CHECKPOINTS = 3


@dataclass(frozen=True)
class Settings:
    """The options of the command line."""

    data: Path
    checkpoints: Path
    steps: int
    batch_size: int
    learning_rate: float
    checkpoint_every: int
    log_every: int


def parse(arguments: list[str] | None = None) -> Settings:
    """Return the settings. An invalid option exits with a message and code 2."""
    parser = argparse.ArgumentParser(description="Train a small CNN on handwritten digits.")
    here = Path(__file__).parent
    parser.add_argument(
        "--data", type=Path, default=here / "digits.csv.gz", help="CSV file: 64 pixels and the digit per line"
    )
    parser.add_argument(
        "--checkpoints", type=Path, default=Path("checkpoints"), help="folder for checkpoints, shared by all processes"
    )
    parser.add_argument("--steps", type=_positive(int), default=400, help="total optimizer steps")
    parser.add_argument("--batch-size", type=_positive(int), default=96, help="images per step, over all processes")
    parser.add_argument("--learning-rate", type=_positive(float), default=2e-3)
    parser.add_argument("--checkpoint-every", type=_positive(int), default=20, help="steps between checkpoints")
    parser.add_argument("--log-every", type=_positive(int), default=10, help="steps between log lines")
    settings = Settings(**vars(parser.parse_args(arguments)))
    if not settings.data.is_file():
        parser.error(f"--data {settings.data}: no such file")
    return settings


def _positive(kind: type[int | float]) -> Any:
    def parse_number(text: str) -> float:
        number = kind(text)
        if number <= 0:
            raise argparse.ArgumentTypeError(f"must be greater than 0, not {text}")
        return number

    parse_number.__name__ = kind.__name__  # the type's name in argparse's error message
    return parse_number


def load_digits(path: Path) -> tuple[TensorDataset, TensorDataset]:
    """Return the training set and the test set: images of shape (1, 8, 8) with values in 0..1, and their digits."""
    with gzip.open(path, "rt") as file:
        rows = torch.tensor([[float(value) for value in line.split(",")] for line in file])
    if rows.ndim != 2 or rows.shape[1] != PIXELS + 1 or len(rows) <= TEST_ROWS:
        sys.exit(f"{path}: expected more than {TEST_ROWS} lines of {PIXELS + 1} numbers, found {tuple(rows.shape)}")
    images, digits = rows[:, :PIXELS].reshape(-1, 1, 8, 8) / 16, rows[:, PIXELS].long()
    training = TensorDataset(images[:-TEST_ROWS], digits[:-TEST_ROWS])
    return training, TensorDataset(images[-TEST_ROWS:], digits[-TEST_ROWS:])


def make_model() -> nn.Module:
    """Return a model of about 190,000 parameters, with the same initial weights in every run."""
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(1, 48, 3, padding=1), nn.ReLU()),
        *(nn.Conv2d(48, 96, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(96, 160, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Dropout(0.5), nn.Linear(160 * 4, 10)),
    )


def save(path: Path, checkpoint: dict[str, Any]) -> None:
    """Write a checkpoint atomically, also on a power failure, and delete the oldest checkpoints."""
    partial = path.with_suffix(".partial")
    with partial.open("wb") as file:
        torch.save(checkpoint, file)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
    for old in newest_first(path.parent)[KEPT_CHECKPOINTS:]:
        old.unlink()


def newest_first(folder: Path) -> list[Path]:
    """Return the checkpoints in a folder, newest first. Steps in names have leading zeros, so names sort by step."""
    return sorted(folder.glob("step-*.pt"), reverse=True)


def read(path: Path, model: nn.Module) -> dict[str, Any]:
    """Return the content of one checkpoint.

    Raises:
        ValueError: the file cannot be read, or belongs to another model.
    """
    try:
        checkpoint: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        shapes = {name: tensor.shape for name, tensor in checkpoint["model"].items()}
        complete = isinstance(checkpoint["step"], int) and "optimizer" in checkpoint
    except Exception as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise ValueError(f"cannot be read ({reason})") from error
    if not complete or shapes != {name: tensor.shape for name, tensor in model.state_dict().items()}:
        raise ValueError("belongs to another model")
    return checkpoint


def newest_good(folder: Path, model: nn.Module) -> dict[str, Any] | None:
    """Return the newest usable checkpoint, and print a warning for each that is not usable."""
    for path in newest_first(folder):
        try:
            return read(path, model)
        except ValueError as error:
            print(f"checkpoint {path} {error}; trying the previous one")
    return None


def resume(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Load the newest usable checkpoint of rank 0 on all ranks, and return its step; 0 without a checkpoint."""
    found = [newest_good(folder, model) if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(found)
    checkpoint = found[0]
    if checkpoint is None:
        return 0
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    return int(checkpoint["step"])


def batches(training: TensorDataset, settings: Settings, first_step: int) -> Iterator[Any]:
    """Yield this rank's share of every batch after `first_step`, in an order that depends only on the epoch."""
    sampler = DistributedSampler(training, shuffle=True, drop_last=True)
    loader = DataLoader(training, settings.batch_size // dist.get_world_size(), sampler=sampler, drop_last=True)
    epoch, skipped = divmod(first_step, len(loader))
    while True:
        sampler.set_epoch(epoch)
        yield from islice(loader, skipped, None)
        epoch, skipped = epoch + 1, 0


def shifted(images: torch.Tensor, step: int) -> torch.Tensor:
    """Return the images shifted by at most one pixel. The step decides the shift, so a resumed run repeats it."""
    down, right = step % 3, step // 3 % 3
    return nn.functional.pad(images, (1, 1, 1, 1))[:, :, down : down + 8, right : right + 8]


def accuracy(model: nn.Module, test: TensorDataset, device: torch.device) -> float:
    """Return the share of test images that are classified correctly; each rank evaluates its own part."""
    images, digits = (part[dist.get_rank() :: dist.get_world_size()].to(device) for part in test.tensors)
    model.eval()
    with torch.no_grad():
        correct = (model(images).argmax(dim=1) == digits).sum()
    dist.all_reduce(correct)
    return float(correct) / len(test)


def fingerprint(model: nn.Module) -> str:
    """Return a hash of all weights. It is the same with and without a recovery, for the same number of processes."""
    digest = hashlib.sha256()
    for tensor in model.state_dict().values():
        digest.update(tensor.cpu().numpy().tobytes())
    return digest.hexdigest()[:16]


def train(settings: Settings, device: torch.device) -> None:
    """Resume from a checkpoint, train, and test the model."""
    world_size = dist.get_world_size()
    is_rank_0 = dist.get_rank() == 0
    training, test = load_digits(settings.data)
    if settings.batch_size % world_size or settings.batch_size > len(training):
        sys.exit(
            f"--batch-size {settings.batch_size}: must be a multiple of the {world_size} processes, at most {len(training)}"
        )
    model = make_model().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=settings.learning_rate)
    settings.checkpoints.mkdir(parents=True, exist_ok=True)
    first_step = resume(settings.checkpoints, model, optimizer)
    if is_rank_0:
        attempt = os.environ.get("TRAINYARD_ATTEMPT")
        start = f"resumed from step {first_step}" if first_step else "started at step 0"
        print(f"{start}{f' (attempt {attempt})' if attempt else ''}: {world_size} processes on {device.type}")
    parallel = DistributedDataParallel(model)
    loss_of = nn.CrossEntropyLoss()
    # DDP sums the gradients of its first step in a different order than those of later steps. Run one step without an update,
    # so that the first real step of a resumed run is like all others.
    loss_of(parallel(training.tensors[0][:1].to(device)), training.tensors[1][:1].to(device)).backward()
    data = batches(training, settings, first_step)
    since, lines_step = time.perf_counter(), first_step
    for step in range(first_step + 1, settings.steps + 1):
        images, digits = (part.to(device) for part in next(data))
        for group in optimizer.param_groups:
            group["lr"] = settings.learning_rate * (1 + math.cos(math.pi * (step - 1) / settings.steps)) / 2
        # Seed dropout by the step, so that a resumed run repeats it.
        torch.manual_seed(step * world_size + dist.get_rank())
        loss = loss_of(parallel(shifted(images, step)), digits)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        logs = step % settings.log_every == 0 or step == settings.steps
        progress(step, total=settings.steps, loss=loss.item() if logs else None)
        if is_rank_0 and logs:
            milliseconds = (time.perf_counter() - since) * 1000 / (step - lines_step)
            print(f"step {step}/{settings.steps} loss {loss.item():.3f} {milliseconds:.1f} ms/step")
            since, lines_step = time.perf_counter(), step
        stops = step < settings.steps and must_stop(step)
        if is_rank_0 and (stops or step % settings.checkpoint_every == 0 or step == settings.steps):
            state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
            save(settings.checkpoints / f"step-{step:08d}.pt", state)
        if stops:
            sys.exit(SAVED)
    result = accuracy(model, test, device)
    if is_rank_0:
        print(f"weights {fingerprint(model)}")
        print(f"test accuracy {result:.3f}")


def main() -> None:
    """Join the process group of the launcher, train, and leave the group."""
    settings = parse()
    if "RANK" not in os.environ:
        sys.exit("RANK is not set: start this with `torchrun --nproc-per-node=N train.py`")
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # a script's stdout is a text file
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        train(settings, device)
    finally:
        # Before torch 2.8, destroying a gloo group may hang unless the backend object outlives the group (pytorch/pytorch#154976).
        _gloo = dist.group.WORLD._get_backend(device) if device.type == "cpu" else None  # noqa: SLF001
        dist.destroy_process_group()


if __name__ == "__main__":
    record(main)()
