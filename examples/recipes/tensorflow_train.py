# ruff: noqa: INP001 - a user's program: it is run, not imported
"""TensorFlow: a small network learns to sort five numbers, on all devices of all workers. It knows nothing of Trainyard.

    python3 tensorflow_train.py --checkpoints /tmp/tensorflow

`MultiWorkerMirroredStrategy` reads `TF_CONFIG`. The loop is the program's own: Keras 3 cannot train on several workers. The first worker, or
the chief, saves to one file, and each start resumes from it.
"""

from __future__ import annotations

import argparse
import os
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import tensorflow as tf

LENGTH, WIDTH = 5, 128
SIZES = (LENGTH, WIDTH, WIDTH, LENGTH)


def numbers(count: int, seed: int) -> np.ndarray:
    """Numbers between 0 and 1, of shape (count, LENGTH)."""
    return np.random.default_rng(seed).random((count, LENGTH), dtype=np.float32)


def initial() -> list[np.ndarray]:
    """The weights and biases of three layers, about 18,000 numbers, then the two moments of Adam for each."""
    random = np.random.default_rng(0)
    layers: list[np.ndarray] = []
    for rows, columns in pairwise(SIZES):
        layers += [
            random.normal(0, (2 / rows) ** 0.5, (rows, columns)).astype(np.float32),
            np.zeros(columns, np.float32),
        ]
    return [*layers, *([np.zeros_like(each) for each in layers] * 2)]


def predict(layers: list[tf.Variable], inputs: tf.Tensor) -> tf.Tensor:
    """Return the outputs, of the shape of the inputs."""
    for number in range(0, len(layers), 2):
        inputs = inputs @ layers[number] + layers[number + 1]
        if number < len(layers) - 2:
            inputs = tf.nn.relu(inputs)
    return inputs


def slopes(layers: list[tf.Variable], inputs: tf.Tensor) -> tuple[tf.Tensor, list[tf.Tensor]]:
    """Return the mean squared error and its gradients."""
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((predict(layers, inputs) - tf.sort(inputs, axis=1)) ** 2)
    return loss, tape.gradient(loss, layers)


def apply_adam(state: list[tf.Variable], gradients: list[tf.Tensor], step: tf.Tensor) -> None:
    """Do one step of Adam on the variables that `initial` describes."""
    count = len(gradients)
    scale = 2e-3 * tf.sqrt(1 - 0.999**step) / (1 - 0.9**step)
    for number, gradient in enumerate(gradients):
        layer, mean, square = state[number], state[count + number], state[2 * count + number]
        new_mean, new_square = 0.9 * mean + 0.1 * gradient, 0.999 * square + 0.001 * gradient**2
        mean.assign(new_mean)
        square.assign(new_square)
        layer.assign_sub(scale * new_mean / (tf.sqrt(new_square) + 1e-8))


def save(path: Path, step: int, state: list[tf.Variable]) -> None:
    """Write the checkpoint as a whole or not at all."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    with partial.open("wb") as file:
        np.savez(file, *[each.numpy() for each in state], step=step)
    partial.replace(path)


def load(path: Path) -> tuple[int, list[np.ndarray]]:
    """Return the step of the checkpoint and its state; 0 and a new state where there is none."""
    state = initial()
    if not path.exists():
        return 0, state
    with np.load(path) as found:
        return int(found["step"]), [found[f"arr_{number}"] for number in range(len(state))]


def error_of(layers: list[tf.Variable] | list[np.ndarray]) -> float:
    """Return the mean error on numbers that no step has seen."""
    inputs = numbers(1000, seed=0)
    layers = [tf.convert_to_tensor(each) for each in layers]
    return float(np.abs(predict(layers, inputs).numpy() - np.sort(inputs, axis=1)).mean())


def report(line: str) -> None:
    """Print a line."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def train(options: argparse.Namespace) -> None:
    """Go on from the checkpoint, and say how well it went."""
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    resolver = strategy.cluster_resolver
    leads = (resolver.task_type or "chief") == "chief" or (
        resolver.task_id == 0 and "chief" not in resolver.cluster_spec().jobs
    )
    options.checkpoints.mkdir(parents=True, exist_ok=True)
    path = options.checkpoints / "newest.npz"
    done, values = load(path)
    with strategy.scope():
        state = [tf.Variable(each, aggregation=tf.VariableAggregation.MEAN) for each in values]
    layers = state[: len(state) // 3]

    @tf.function
    def update(inputs: tf.distribute.DistributedValues, step: tf.Tensor) -> tf.Tensor:
        def replica(own: tf.Tensor) -> tf.Tensor:
            loss, gradients = slopes(layers, own)
            mean = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.MEAN, gradients)
            apply_adam(state, mean, step)
            return loss

        return strategy.reduce(tf.distribute.ReduceOp.MEAN, strategy.run(replica, (inputs,)), axis=None)

    if leads:
        report(f"training on {strategy.num_replicas_in_sync} devices")
    if leads and done:
        report(f"resuming from step {done}")
    for step in range(done + 1, options.steps + 1):
        # All replicas together see the same numbers, however many they are.
        batch = numbers(options.batch, seed=step)

        def own(context: tf.distribute.ReplicaContext, batch: np.ndarray = batch) -> tf.Tensor:
            share = np.array_split(batch, context.num_replicas_in_sync)
            return tf.constant(share[context.replica_id_in_sync_group])

        inputs = strategy.experimental_distribute_values_from_function(own)
        loss = update(inputs, tf.constant(step, tf.float32))
        if leads and (step % options.save_every == 0 or step == options.steps):
            save(path, step, state)
            report(f"step {step} loss {float(loss):.4f}")
    if leads:
        report(f"sorted with a mean error of {error_of([each.numpy() for each in layers]):.4f}")


def main() -> None:
    """Train as the options say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoints", type=Path, required=True, help="a folder that all workers share")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch", type=int, default=64, help="samples of a step, all devices together")
    parser.add_argument("--save-every", type=int, default=25, help="steps from one checkpoint to the next")
    train(parser.parse_args())


if __name__ == "__main__":
    main()
