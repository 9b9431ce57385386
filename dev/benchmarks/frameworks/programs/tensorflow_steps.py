"""TensorFlow's MultiWorkerMirroredStrategy: a chief and workers, by TF_CONFIG."""

from __future__ import annotations

import json
import os
import secrets
import sys
import time
from pathlib import Path
from typing import Any

BEGAN = time.monotonic()

# The benchmark measures the import time.
import tensorflow as tf  # noqa: E402 - see above

from dev.benchmarks.frameworks.programs.diary import STEP_SECONDS, STEPS, Diary, load, save  # noqa: E402 - see above


def place() -> tuple[int, int]:
    """Return the rank of this process and the number of ranks."""
    config = json.loads(os.environ["TF_CONFIG"])
    members = [(kind, index) for kind in ("chief", "worker") for index in range(len(config["cluster"].get(kind, [])))]
    return members.index((config["task"]["type"], config["task"]["index"])), len(members)


def main(folder: Path, checkpoint_every: int) -> None:
    """Train until a fault."""
    diary = Diary(folder, BEGAN)
    rank, size = place()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    strategy = tf.distribute.MultiWorkerMirroredStrategy()

    def sum_of(value: float) -> float:
        own = strategy.experimental_distribute_values_from_function(lambda _: tf.constant(value))

        def replica(each: Any) -> Any:
            return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, each)

        return float(tf.function(lambda: strategy.run(replica, (own,)))())

    def train(step: Any) -> None:
        def replica() -> None:
            gradient = weights / 2 + rank + step
            mean = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.MEAN, gradient)
            weights.assign_sub(1e-6 * mean)

        strategy.run(replica)

    diary.connected(rank, size, str(sum_of(float(secrets.randbelow(2**20)))))
    first, values = load(folder)
    with strategy.scope():
        weights = tf.Variable(values, dtype=tf.float32, aggregation=tf.VariableAggregation.MEAN)
    diary.write("loaded", step=first)
    update = tf.function(train)
    for step in range(first + 1, STEPS + 1):
        time.sleep(STEP_SECONDS)
        update(tf.constant(float(step)))
        diary.step(step)
        if rank == 0 and step % checkpoint_every == 0:
            save(folder, step, weights.numpy().tolist())


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
