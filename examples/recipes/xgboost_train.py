# ruff: noqa: INP001 - a user's program: it is run, not imported
"""XGBoost: trees learn which points lie between two circles, each process with its part of the points. It knows nothing of Trainyard.

    python3 xgboost_train.py --checkpoints /tmp/xgboost

The model is saved now and then, and each start goes on from the newest.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import numpy as np
import xgboost
from xgboost import collective
from xgboost.tracker import RabitTracker

RANK, WORLD_SIZE = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def points(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Points of shape (count, 2), and 1 for each that lies between the circles, of shape (count,)."""
    places = np.random.default_rng(seed).uniform(-1, 1, size=(count, 2))
    distance = np.hypot(*places.T)
    return places, ((distance > 0.4) & (distance < 0.8)).astype(float)


def tracker() -> RabitTracker | None:
    """Start what brings the processes together; only the first of several does."""
    if RANK != 0 or WORLD_SIZE == 1:
        return None
    port = int(os.environ["DMLC_TRACKER_PORT"])
    started = RabitTracker(n_workers=WORLD_SIZE, host_ip="0.0.0.0", port=port, sortby="task")  # noqa: S104 - its peers are on other machines
    started.start()
    return started


def communicator() -> AbstractContextManager[object]:
    """Join the other processes. XGBoost does not read these variables by itself."""
    if WORLD_SIZE == 1:
        return nullcontext()
    if RANK > 0:
        # The tracker starts at this moment. A process that is too early tries again after six seconds.
        time.sleep(1)
    return collective.CommunicatorContext(
        dmlc_communicator="rabit",
        dmlc_tracker_uri=os.environ["DMLC_TRACKER_URI"],
        dmlc_tracker_port=int(os.environ["DMLC_TRACKER_PORT"]),
        dmlc_task_id=os.environ["DMLC_TASK_ID"],
        dmlc_retry=10,
    )


def report(line: str) -> None:
    """Print a line on rank 0."""
    if RANK == 0:
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()


class Checkpoints(xgboost.callback.TrainingCallback):
    """Saves the model now and then. A file has its name once it is complete."""

    def __init__(self, options: argparse.Namespace) -> None:
        """Use the folder and the interval of the options."""
        self.folder, self.every, self.pause = options.checkpoints, options.save_every, options.pause

    def newest(self) -> Path | None:
        """Return the model of the last round that was saved."""
        return max(self.folder.glob("round-*.ubj"), default=None)

    def after_iteration(self, model: xgboost.Booster, epoch: int, evals_log: dict[str, dict[str, list[float]]]) -> bool:  # noqa: ARG002 - the name is XGBoost's
        """Save, and say how well it goes. Returns False: training goes on."""
        rounds = model.num_boosted_rounds()
        time.sleep(self.pause)
        if rounds % self.every == 0 and RANK == 0:
            self.folder.mkdir(parents=True, exist_ok=True)
            partial = self.folder / f"partial-{os.getpid()}.ubj"
            model.save_model(partial)
            partial.rename(self.folder / f"round-{rounds:08}.ubj")
            report(f"step {rounds} loss {evals_log['train']['logloss'][-1]:.4f}")
        return False


def train(options: argparse.Namespace) -> None:
    """Go on from the newest model, and say how well it went."""
    places, classes = points(options.points, seed=1)
    # Each process has its part of the points. XGBoost adds up what all of them find.
    own = xgboost.DMatrix(places[RANK::WORLD_SIZE], classes[RANK::WORLD_SIZE])
    checkpoints = Checkpoints(options)
    found = checkpoints.newest()
    model = xgboost.Booster(model_file=found) if found else None
    rounds = model.num_boosted_rounds() if model else 0
    if model:
        report(f"resuming from step {rounds}")
    parameters = {
        "objective": "binary:logistic",
        "tree_method": "hist",
        "max_depth": 4,
        "eta": 0.1,
        "device": options.device.format(local_rank=os.environ.get("LOCAL_RANK", "0")),
    }
    model = xgboost.train(
        parameters,
        own,
        options.rounds - rounds,
        evals=[(own, "train")],
        verbose_eval=False,
        xgb_model=model,
        callbacks=[checkpoints],
    )
    places, classes = points(2000, seed=2)
    right = (model.predict(xgboost.DMatrix(places)) > 0.5) == classes
    report(f"{100 * right.mean():.1f}% of points in the test set are classified correctly")


def main() -> None:
    """Join the other processes, train, and part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoints", type=Path, required=True, help="a folder that all processes share")
    parser.add_argument("--rounds", type=int, default=100, help="trees of the model")
    parser.add_argument("--points", type=int, default=20000, help="of all processes together")
    parser.add_argument("--save-every", type=int, default=10, help="rounds from one checkpoint to the next")
    parser.add_argument("--device", default="cpu", help="cpu, or cuda:{local_rank}")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds to wait after each round, to watch it")
    options = parser.parse_args()
    meeting = tracker()
    with communicator():
        train(options)
    if meeting:
        # The other processes take leave of it.
        meeting.wait_for()


if __name__ == "__main__":
    main()
