# ruff: noqa: INP001 - a user's program: it is run, not imported
"""Ray Train: a network learns which points lie between two circles, on all workers of a Ray cluster. It knows nothing of Trainyard.

    python3 ray_train.py --checkpoints /tmp/ray-train

This is the driver: it runs on the head, and Ray starts `train` on each worker. After the loss of a worker Ray waits for another one, and
goes on from the newest checkpoint. So does a new driver.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import ray
import ray.train
import torch
from ray.train.torch import TorchTrainer, get_device, prepare_model
from torch import nn

BATCH = 256


def points(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Points of shape (count, 2), and 1 for each that lies between the circles, of shape (count,)."""
    places = torch.rand(count, 2, generator=torch.Generator().manual_seed(seed)) * 2 - 1
    distance = places.norm(dim=1)
    return places, ((distance > 0.4) & (distance < 0.8)).float()


def network() -> nn.Sequential:
    """Return a network whose output is above 0 for points between the circles."""
    return nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))


def train(options: dict[str, int]) -> None:
    """Train on one worker. All of them have the same parameters after each step."""
    rank, device = ray.train.get_context().get_world_rank(), get_device()
    torch.manual_seed(1)
    module = network()
    optimizer, first = torch.optim.AdamW(module.parameters(), lr=3e-3), 0
    if (checkpoint := ray.train.get_checkpoint()) is not None:
        with checkpoint.as_directory() as folder:
            state = torch.load(Path(folder, "state.pt"), weights_only=True)
        module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["step"]
        say(rank, f"resuming from step {first}")
    model = prepare_model(module)
    for step in range(first + 1, options["steps"] + 1):
        places, between = (each.to(device) for each in points(BATCH, step * 1000 + rank))
        loss = nn.functional.binary_cross_entropy_with_logits(model(places).squeeze(1), between)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % options["save_every"] == 0 or step == options["steps"]:
            say(rank, f"step {step} loss {loss.item():.3f}")
            state = {"model": module.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            save(rank, state, loss.item())
    places, between = (each.to(device) for each in points(4096, 0))
    right = ((module(places).squeeze(1) > 0) == (between > 0)).float().mean().item()
    say(rank, f"{100 * right:.1f}% of points in the test set are classified correctly")


def save(rank: int, state: dict[str, object], loss: float) -> None:
    """Report the loss, with a checkpoint of rank 0. All ranks have to call this."""
    with tempfile.TemporaryDirectory() as folder:
        if rank == 0:
            torch.save(state, Path(folder, "state.pt"))
        checkpoint = ray.train.Checkpoint.from_directory(folder) if rank == 0 else None
        ray.train.report({"loss": loss, "step": state["step"]}, checkpoint=checkpoint)


def say(rank: int, line: str) -> None:
    """Print a line on rank 0. Ray shows it in the log of the driver."""
    if rank == 0:
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()


def main() -> None:
    """Train on as many workers as the cluster has."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoints", type=Path, required=True, help="a folder that all nodes share")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--save-every", type=int, default=20)
    parser.add_argument("--gpus", action="store_true", help="train on one GPU of each worker")
    options = parser.parse_args()
    ray.init()
    workers = sum(bool(node["Alive"] and node["Resources"].get("CPU")) for node in ray.nodes())
    trainer = TorchTrainer(
        train,
        train_loop_config={"steps": options.steps, "save_every": options.save_every},
        scaling_config=ray.train.ScalingConfig(num_workers=workers, use_gpu=options.gpus),
        run_config=ray.train.RunConfig(
            # A driver with the same name and folder resumes the run.
            name="points",
            storage_path=str(options.checkpoints.resolve()),
            failure_config=ray.train.FailureConfig(max_failures=-1),
            checkpoint_config=ray.train.CheckpointConfig(num_to_keep=2),
        ),
    )
    trainer.fit()


if __name__ == "__main__":
    main()
