# ruff: noqa: INP001 - a user's program: it is run, not imported
"""MPI: a linear model learns from points of which each rank has its own, by `Allreduce`. It knows nothing of Trainyard.

    mpirun -np 2 python3 -m mpi4py mpi_train.py --checkpoints /tmp/mpi

`python3 -m mpi4py` ends all ranks where one raises an exception. Each start resumes from the newest checkpoint.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

import numpy as np
from mpi4py import MPI

FEATURES = 8


def points(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Points of shape (count, FEATURES), and on which side of a fixed plane each of them is, as 0 and 1."""
    plane = np.random.default_rng(7).normal(size=FEATURES)
    made = np.random.default_rng(seed).normal(size=(count, FEATURES))
    return made, (made @ plane > 0).astype(float)


def probabilities(weights: np.ndarray, inputs: np.ndarray) -> np.ndarray:
    """The model: logistic regression."""
    return 1 / (1 + np.exp(-(inputs @ weights)))


def report(rank: int, line: str) -> None:
    """Print a line on rank 0."""
    if rank == 0:
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()


def resumed(world: MPI.Comm, folder: Path) -> tuple[int, np.ndarray]:
    """Return the step and the weights of the newest checkpoint, the same on all ranks; step 0 where there is none."""
    found = None
    if world.rank == 0 and (file := folder / "weights.npz").exists():
        with np.load(file) as saved:
            found = int(saved["step"]), saved["weights"]
    step, weights = world.bcast(found) or (0, np.zeros(FEATURES))
    return step, np.array(weights)


def save(folder: Path, step: int, weights: np.ndarray) -> None:
    """Write a checkpoint in place of the last one. A rank that is killed meanwhile leaves the last one as it is."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "weights.new").open("wb") as file:
        np.savez(file, step=step, weights=weights)
        file.flush()
        os.fsync(file.fileno())
    (folder / "weights.new").replace(folder / "weights.npz")


def train(world: MPI.Comm, options: argparse.Namespace) -> None:
    """Go on from the newest checkpoint, and say how well it went."""
    first, weights = resumed(world, options.checkpoints)
    if first:
        report(world.rank, f"resuming from step {first}")
    inputs, labels = points(options.points, seed=100 + world.rank)
    for step in range(first + 1, options.steps + 1):
        guessed = probabilities(weights, inputs)
        loss = -np.mean(labels * np.log(guessed + 1e-9) + (1 - labels) * np.log(1 - guessed + 1e-9))
        # The gradient, and the loss behind it.
        own = np.append(inputs.T @ (guessed - labels) / len(labels), loss)
        mean = np.empty_like(own)
        world.Allreduce(own, mean)
        mean /= world.size
        weights -= options.rate * mean[:-1]
        time.sleep(options.pause)
        if step % options.save_every == 0 or step == options.steps:
            if world.rank == 0:
                save(options.checkpoints, step, weights)
            report(world.rank, f"step {step} loss {mean[-1]:.4f}")
    inputs, labels = points(2000, seed=99)
    right = float(np.mean((probabilities(weights, inputs) > 0.5) == (labels > 0.5)))
    report(world.rank, f"{100 * right:.1f}% of points in the test set are classified correctly, by {world.size} ranks")


def main() -> None:
    """Train with all ranks of the launcher."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoints", type=Path, required=True, help="a folder of rank 0")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--points", type=int, default=500, help="of each rank")
    parser.add_argument("--rate", type=float, default=0.5)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds after each step")
    parser.add_argument("--save-every", type=int, default=25, help="steps from one checkpoint to the next")
    train(MPI.COMM_WORLD, parser.parse_args())


if __name__ == "__main__":
    main()
