# ruff: noqa: INP001 - a user's program: it is run, not imported
"""Lightning: a small network learns which of three rings a point is on. It knows nothing of Trainyard.

    torchrun --nproc-per-node=2 lightning_train.py --checkpoints /tmp/lightning

Checkpoints are Lightning's own, one after each epoch, and each start resumes from the last (`ckpt_path="last"`).
"""

from __future__ import annotations

import argparse
import gc
import os
from pathlib import Path

import lightning
import torch
import torch.distributed as dist
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

RINGS = 3


def points(count: int, seed: int) -> TensorDataset:
    """Points of shape (2,) around rings of radius 1, 2 and 3, and the ring of each."""
    random = torch.Generator().manual_seed(seed)
    rings = torch.randint(0, RINGS, (count,), generator=random)
    angle = 2 * torch.pi * torch.rand(count, generator=random)
    radius = 1 + rings + 0.2 * torch.randn(count, generator=random)
    return TensorDataset(torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1), rings)


class Rings(lightning.LightningModule):
    """Two hidden layers."""

    def __init__(self) -> None:
        super().__init__()
        self._net = nn.Sequential(nn.Linear(2, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, RINGS))
        self._loss = torch.tensor(torch.nan)

    def on_train_start(self) -> None:
        """Say so where an earlier start has come some way."""
        if self.global_step:
            self.print(f"resuming from step {self.global_step}", flush=True)

    def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        """The loss of a batch."""
        inputs, rings = batch
        loss = nn.functional.cross_entropy(self._net(inputs), rings)
        self._loss = loss.detach()
        return loss

    def on_train_epoch_end(self) -> None:
        """Say how far it is."""
        self.print(f"step {self.global_step} loss {float(self._loss):.4f}", flush=True)

    def validation_step(self, batch: list[torch.Tensor]) -> None:
        """Return the share of a batch that is classified correctly."""
        inputs, rings = batch
        self.log("right", (self._net(inputs).argmax(1) == rings).float().mean(), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """AdamW."""
        return torch.optim.AdamW(self.parameters(), lr=2e-3)


def trainer(folder: Path, epochs: int) -> lightning.Trainer:
    """For as many processes as the launcher has started: their number is the one thing that Lightning does not look up itself."""
    here, world = (int(os.environ.get(name, "1")) for name in ("LOCAL_WORLD_SIZE", "WORLD_SIZE"))
    # The two newest stay, and `last.ckpt` points to one that is whole: Lightning copies it to where it is to be.
    kept = ModelCheckpoint(
        folder,
        "{step:06d}",
        monitor="step",
        mode="max",
        save_top_k=2,
        save_last="link",
        enable_version_counter=False,
    )
    return lightning.Trainer(
        devices=here,
        num_nodes=world // here,
        max_epochs=epochs,
        callbacks=[kept],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


def main() -> None:
    """Train, and say how well it went."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoints", type=Path, required=True, help="a folder that all processes share")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch", type=int, default=128, help="points of a step, all processes together")
    options = parser.parse_args()
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if options.batch % world:
        parser.error(f"--batch {options.batch} must be a multiple of the {world} processes")
    lightning.seed_everything(1, verbose=False)
    train(options.checkpoints, options.epochs, options.batch // world)
    if dist.is_initialized():
        # First what holds the process group: gloo's threads would else now and then abort a process that has ended well.
        gc.collect()
        # Before torch 2.8 gloo's end may be a wait for ever, unless its own object is the last to go (pytorch/pytorch#154976).
        _gloo = None if torch.cuda.is_available() else dist.group.WORLD._get_backend(torch.device("cpu"))  # noqa: SLF001
        dist.destroy_process_group()


def train(folder: Path, epochs: int, share: int) -> None:
    """As long as it is, and say how well it went."""
    model, fitting = Rings(), trainer(folder, epochs)
    fitting.fit(model, DataLoader(points(3200, seed=1), share, shuffle=True, drop_last=True), ckpt_path="last")
    (found,) = fitting.validate(model, DataLoader(points(1024, seed=2), share), verbose=False)
    model.print(f"{found['right']:.1%} of points in the test set are classified correctly", flush=True)


if __name__ == "__main__":
    main()
