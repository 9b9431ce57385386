# ruff: noqa: INP001 - a user's program: it is run, not imported
"""TensorFlow with parameter servers: the network of `tensorflow_train.py`, whose variables live on the servers.

    python3 tensorflow_servers.py --checkpoints /tmp/tensorflow

Each member learns its role from `TF_CONFIG`. The chief gives steps to the workers, and saves; without a worker, the others go on. The evaluator
looks at each new checkpoint.
"""

from __future__ import annotations

import argparse
import os
import signal
import time
from pathlib import Path

import tensorflow as tf
from tensorflow_train import apply_adam, error_of, load, numbers, report, save, slopes

LOOK_SECONDS = 1.0


def serve(resolver: tf.distribute.cluster_resolver.TFConfigClusterResolver) -> None:
    """Compute, or hold variables, until the process is killed."""
    server = tf.distribute.Server(
        resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id, protocol="grpc"
    )
    server.join()


def train(resolver: tf.distribute.cluster_resolver.TFConfigClusterResolver, options: argparse.Namespace) -> None:
    """Go on from the checkpoint, and say how well it went."""
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    options.checkpoints.mkdir(parents=True, exist_ok=True)
    path = options.checkpoints / "newest.npz"
    done, values = load(path)
    with strategy.scope():
        state = [tf.Variable(each) for each in values]
    layers = state[: len(state) // 3]

    @tf.function
    def update(inputs: tf.Tensor, step: tf.Tensor) -> tf.Tensor:
        loss, gradients = slopes(layers, inputs)
        apply_adam(state, gradients, step)
        return loss

    report(f"training on {len(resolver.cluster_spec().as_dict()['worker'])} workers")
    if done:
        report(f"resuming from step {done}")
    while done < options.steps:
        steps = range(done + 1, min(done + options.save_every, options.steps) + 1)
        losses = [
            coordinator.schedule(update, args=(tf.constant(numbers(options.batch, step)), tf.constant(float(step))))
            for step in steps
        ]
        coordinator.join()
        done = steps[-1]
        save(path, done, state)
        report(f"step {done} loss {sum(float(loss.fetch()) for loss in losses) / len(losses):.4f}")
    report(f"sorted with a mean error of {error_of([each.numpy() for each in layers]):.4f}")


def evaluate(path: Path) -> None:
    """Say how good each checkpoint is, also the last one, until the process is terminated."""
    stops: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stops.append(number))
    seen = 0
    while True:
        last = bool(stops)
        step, state = load(path)
        if step > seen:
            seen = step
            report(f"the checkpoint of step {step} has a mean error of {error_of(state[: len(state) // 3]):.4f}")
        if last:
            return
        time.sleep(LOOK_SECONDS)


def main() -> None:
    """Do what the role asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoints", type=Path, required=True, help="a folder that chief and evaluator share")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch", type=int, default=64, help="samples of a step, which one worker computes")
    parser.add_argument("--save-every", type=int, default=50, help="steps from one checkpoint to the next")
    options = parser.parse_args()
    # A worker that is lost fails calls at once, and is asked again once it is back.
    os.environ.setdefault("GRPC_FAIL_FAST", "use_caller")
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type in {"worker", "ps"}:
        serve(resolver)
    elif resolver.task_type == "evaluator":
        evaluate(options.checkpoints / "newest.npz")
    else:
        train(resolver, options)


if __name__ == "__main__":
    main()
