# ruff: noqa: INP001 - a user's program: it is run, not imported
"""LightGBM: trees learn which points lie between two circles, each process with its part of the points. It knows nothing of Trainyard.

    python3 lightgbm_train.py --checkpoints /tmp/lightgbm

The model is saved now and then, and each start goes on from the newest.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

import lightgbm
import numpy as np

RANK, WORLD_SIZE = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def points(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Points of shape (count, 2), and 1 for each that lies between the circles, of shape (count,)."""
    places = np.random.default_rng(seed).uniform(-1, 1, size=(count, 2))
    distance = np.hypot(*places.T)
    return places, ((distance > 0.4) & (distance < 0.8)).astype(float)


def network() -> dict[str, object]:
    """Return the parameters by which the processes find each other."""
    if WORLD_SIZE == 1:
        return {}
    return {
        "machines": os.environ["LIGHTGBM_MACHINES"],
        "num_machines": WORLD_SIZE,
        "local_listen_port": int(os.environ["WORKER_PORT"]) + int(os.environ["LOCAL_RANK"]),
        "tree_learner": "data",
        "pre_partition": True,
    }


def report(line: str) -> None:
    """Print a line on rank 0."""
    if RANK == 0:
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()


class Checkpoints:
    """Saves the model now and then. A file has its name once it is complete."""

    def __init__(self, options: argparse.Namespace) -> None:
        """Use the folder and the interval of the options."""
        self.folder, self.every, self.pause = options.checkpoints, options.save_every, options.pause

    def newest(self) -> Path | None:
        """Return the model of the last round that was saved."""
        return max(self.folder.glob("round-*.txt"), default=None)

    def __call__(self, env: lightgbm.callback.CallbackEnv) -> None:
        """Save, and say how well it goes on the points of this process."""
        rounds = env.model.current_iteration()
        time.sleep(self.pause)
        if rounds % self.every == 0 and RANK == 0:
            self.folder.mkdir(parents=True, exist_ok=True)
            partial = self.folder / f"partial-{os.getpid()}.txt"
            env.model.save_model(partial)
            partial.rename(self.folder / f"round-{rounds:08}.txt")
            report(f"step {rounds} loss {env.evaluation_result_list[0][2]:.4f}")


def train(options: argparse.Namespace) -> None:
    """Go on from the newest model, and say how well it went."""
    places, classes = points(options.points, seed=1)
    # Each process has its part of the points. LightGBM adds up what all of them find.
    own = lightgbm.Dataset(places[RANK::WORLD_SIZE], classes[RANK::WORLD_SIZE])
    checkpoints = Checkpoints(options)
    found = checkpoints.newest()
    rounds = lightgbm.Booster(model_file=found).current_iteration() if found else 0
    if found:
        report(f"resuming from step {rounds}")
    parameters = {"objective": "binary", "learning_rate": 0.1, "verbosity": -1, **network()}
    if rounds < options.rounds:
        model = lightgbm.train(
            parameters,
            own,
            options.rounds - rounds,
            init_model=found,
            valid_sets=[own],
            callbacks=[checkpoints],
        )
    else:
        model = lightgbm.Booster(model_file=found)
    places, classes = points(2000, seed=2)
    right = (model.predict(places) > 0.5) == classes
    report(f"{100 * right.mean():.1f}% of points in the test set are classified correctly")


def main() -> None:
    """Join the other processes, train, and part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoints", type=Path, required=True, help="a folder that all processes share")
    parser.add_argument("--rounds", type=int, default=100, help="trees of the model")
    parser.add_argument("--points", type=int, default=20000, help="of all processes together")
    parser.add_argument("--save-every", type=int, default=10, help="rounds from one checkpoint to the next")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds to wait after each round, to watch it")
    train(parser.parse_args())


if __name__ == "__main__":
    main()
