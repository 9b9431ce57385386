# ruff: noqa: INP001 - a user's program: it is run, not imported
"""JAX: a small network learns to sort five numbers, on all devices of all processes. It knows nothing of Trainyard.

    python3 jax_train.py --checkpoints /tmp/jax

Process 0 saves to one file, and each start resumes from it. When a worker has to go, JAX agrees on the step after which all stop.
"""

from __future__ import annotations

import argparse
import os
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

LENGTH, WIDTH = 5, 128
Parameters = Any


def numbers(count: int, seed: int) -> np.ndarray:
    """Numbers between 0 and 1, of shape (count, LENGTH)."""
    return np.random.default_rng(seed).random((count, LENGTH), dtype=np.float32)


def initial() -> Parameters:
    """The weights and biases of three layers, about 18,000 numbers, with the two moments of Adam. The same in each process."""
    random = np.random.default_rng(0)
    sizes = (LENGTH, WIDTH, WIDTH, LENGTH)
    layers = [
        (random.normal(0, (2 / rows) ** 0.5, (rows, columns)).astype(np.float32), np.zeros(columns, np.float32))
        for rows, columns in pairwise(sizes)
    ]
    zeros = jax.tree.map(np.zeros_like, layers)
    return layers, zeros, zeros


def predict(layers: Parameters, inputs: jax.Array) -> jax.Array:
    """Return the outputs, of the shape of the inputs."""
    for weights, bias in layers[:-1]:
        inputs = jax.nn.relu(inputs @ weights + bias)
    weights, bias = layers[-1]
    return inputs @ weights + bias


def loss_of(layers: Parameters, inputs: jax.Array) -> jax.Array:
    """Return the mean squared error over the whole batch. Its devices communicate as the sharding of `inputs` asks for."""
    return jnp.mean((predict(layers, inputs) - jnp.sort(inputs, axis=1)) ** 2)


@jax.jit
def update(state: Parameters, inputs: jax.Array, step: jax.Array) -> tuple[Parameters, jax.Array]:
    """Do one step of Adam."""
    layers, means, squares = state
    loss, slopes = jax.value_and_grad(loss_of)(layers, inputs)
    means = jax.tree.map(lambda old, new: 0.9 * old + 0.1 * new, means, slopes)
    squares = jax.tree.map(lambda old, new: 0.999 * old + 0.001 * new**2, squares, slopes)
    scale = 2e-3 * jnp.sqrt(1 - 0.999**step) / (1 - 0.9**step)
    layers = jax.tree.map(
        lambda old, mean, square: old - scale * mean / (jnp.sqrt(square) + 1e-8), layers, means, squares
    )
    return (layers, means, squares), loss


def save(path: Path, step: int, state: Parameters) -> None:
    """Write the checkpoint in process 0, as a whole or not at all. All processes wait for that."""
    if jax.process_index() == 0:
        partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
        with partial.open("wb") as file:
            np.savez(file, *[np.asarray(each) for each in jax.tree.leaves(state)], step=step)
        partial.replace(path)
    multihost_utils.sync_global_devices(f"saved {step}")


def load(path: Path) -> tuple[int, Parameters]:
    """Return the step of the checkpoint and its state; 0 and a new state where there is none."""
    state = initial()
    if not path.exists():
        return 0, state
    with np.load(path) as found:
        leaves = [found[f"arr_{number}"] for number in range(len(jax.tree.leaves(state)))]
        return int(found["step"]), jax.tree.unflatten(jax.tree.structure(state), leaves)


def report(line: str) -> None:
    """Print a line in process 0."""
    if jax.process_index() == 0:
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()


def train(options: argparse.Namespace) -> None:
    """Go on from the checkpoint, and say how well it went."""
    mesh = Mesh(np.array(jax.devices()), ("data",))
    everywhere, divided = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("data"))
    options.checkpoints.mkdir(parents=True, exist_ok=True)
    path = options.checkpoints / "newest.npz"
    done, state = load(path)
    state = jax.device_put(state, everywhere)
    report(f"training on {jax.device_count()} devices of {jax.process_count()} processes")
    if done:
        report(f"resuming from step {done}")
    share = options.batch // jax.process_count()
    first = share * jax.process_index()
    for step in range(done + 1, options.steps + 1):
        # All processes together see the same numbers, however many they are.
        own = numbers(options.batch, seed=step)[first : first + share]
        inputs = jax.make_array_from_process_local_data(divided, own)
        state, loss = update(state, inputs, step)
        must_stop = multihost_utils.reached_preemption_sync_point(step)
        if must_stop or step % options.save_every == 0 or step == options.steps:
            save(path, step, state)
            report(f"step {step} loss {loss:.4f}")
        if must_stop:
            report(f"stopped after step {step}")
            return
    inputs = numbers(1000, seed=0)
    error = np.abs(np.asarray(predict(jax.tree.map(np.asarray, state[0]), inputs)) - np.sort(inputs, axis=1)).mean()
    report(f"sorted with a mean error of {error:.4f}")


def main() -> None:
    """Join the other processes, train, and part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoints", type=Path, required=True, help="a folder that all processes share")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch", type=int, default=64, help="samples of a step, all processes together")
    parser.add_argument("--save-every", type=int, default=25, help="steps from one checkpoint to the next")
    options = parser.parse_args()
    jax.distributed.initialize()
    train(options)
    jax.distributed.shutdown()


if __name__ == "__main__":
    main()
