# ruff: noqa: INP001 - a user's program: it is run, not imported
"""PaddlePaddle: a small network learns to sort five numbers, data parallel over all processes. It knows nothing of Trainyard.

    python3 paddle_train.py --checkpoints /tmp/paddle

`init_parallel_env` finds the group by `PADDLE_*`. Rank 0 saves to one file, and each start resumes from it.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from paddle import distributed, nn

LENGTH, WIDTH = 5, 128


def numbers(count: int, seed: int) -> np.ndarray:
    """Numbers between 0 and 1, of shape (count, LENGTH)."""
    return np.random.default_rng(seed).random((count, LENGTH), dtype=np.float32)


def network() -> nn.Sequential:
    """Return a network of about 18,000 weights, the same in all processes."""
    paddle.seed(0)
    return nn.Sequential(
        nn.Linear(LENGTH, WIDTH),
        nn.ReLU(),
        nn.Linear(WIDTH, WIDTH),
        nn.ReLU(),
        nn.Linear(WIDTH, LENGTH),
    )


def report(line: str) -> None:
    """Print a line in rank 0."""
    if distributed.get_rank() == 0:
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()


def save(path: Path, state: dict[str, Any]) -> None:
    """Write the checkpoint as a whole or not at all."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    paddle.save(state, str(partial))
    partial.replace(path)


def train(options: argparse.Namespace) -> None:
    """Go on from the checkpoint, and say how well it went."""
    if not paddle.is_compiled_with_cuda():
        # Its default is another one, also where there are no GPUs that it could use.
        os.environ.setdefault("PADDLE_DISTRI_BACKEND", "gloo")
    distributed.init_parallel_env()
    rank, size = distributed.get_rank(), distributed.get_world_size()
    own = network()
    optimizer = paddle.optimizer.Adam(2e-3, parameters=own.parameters())
    options.checkpoints.mkdir(parents=True, exist_ok=True)
    path, done = options.checkpoints / "newest.pdparams", 0
    if path.exists():
        state = paddle.load(str(path))
        own.set_state_dict(state["network"])
        optimizer.set_state_dict(state["optimizer"])
        done = state["step"]
    model = paddle.DataParallel(own)
    report(f"training on {size} processes")
    if done:
        report(f"resuming from step {done}")
    for step in range(done + 1, options.steps + 1):
        # All processes together see the same numbers, however many they are.
        inputs = paddle.to_tensor(numbers(options.batch, seed=step)[rank::size])
        loss = ((model(inputs) - paddle.sort(inputs, axis=1)) ** 2).mean()
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        time.sleep(options.pause)
        if rank == 0 and (step % options.save_every == 0 or step == options.steps):
            save(path, {"step": step, "network": own.state_dict(), "optimizer": optimizer.state_dict()})
            report(f"step {step} loss {float(loss):.4f}")
    inputs = numbers(1000, seed=0)
    with paddle.no_grad():
        error = np.abs(own(paddle.to_tensor(inputs)).numpy() - np.sort(inputs, axis=1)).mean()
    report(f"sorted with a mean error of {error:.4f}")


def main() -> None:
    """Train as the options say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoints", type=Path, required=True, help="a folder that all processes share")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch", type=int, default=64, help="samples of a step, all processes together")
    parser.add_argument("--save-every", type=int, default=50, help="steps from one checkpoint to the next")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds to wait after each step, to watch it")
    train(parser.parse_args())


if __name__ == "__main__":
    main()
