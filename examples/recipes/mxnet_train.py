# ruff: noqa: INP001 - a user's program: it is run, not imported
"""MXNet: a small network learns which points lie between two circles, by a parameter server. It knows nothing of Trainyard.

    python3 mxnet_train.py --checkpoints /tmp/mxnet

All members run this program. On the scheduler and the servers `import mxnet` does their work, and ends the process once all workers have
parted. The servers hold the weights, and update them by the gradients of the workers. Worker 0 saves, and each start resumes from there.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

LEADS = os.environ.get("DMLC_WORKER_ID", "0") == "0"
"""MXNet's own rank is the order in which the workers arrived."""


def points(count: int, seed: int) -> tuple[mx.nd.NDArray, mx.nd.NDArray]:
    """Points of shape (count, 2), and 1 for each that lies between the circles, of shape (count,)."""
    places = np.random.default_rng(seed).uniform(-1, 1, size=(count, 2)).astype(np.float32)
    distance = np.hypot(*places.T)
    inside = ((distance > 0.4) & (distance < 0.8)).astype(np.float32)
    return mx.nd.array(places), mx.nd.array(inside)


def network() -> gluon.nn.Sequential:
    """Return a network of about 4,400 weights."""
    layers = gluon.nn.Sequential()
    for _ in range(2):
        layers.add(gluon.nn.Dense(64, activation="relu"))
    layers.add(gluon.nn.Dense(1))
    return layers


def report(line: str) -> None:
    """Print a line in worker 0."""
    if LEADS:
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()


def save(model: gluon.nn.Sequential, folder: Path, step: int) -> None:
    """Save the weights. A file has its name once it is complete."""
    partial = folder / f"partial-{os.getpid()}.params"
    model.save_parameters(str(partial))
    partial.rename(folder / f"step-{step:08}.params")


def train(options: argparse.Namespace) -> None:
    """Go on from the newest weights, and say how well it went."""
    store = mx.kvstore.create(options.store)
    options.checkpoints.mkdir(parents=True, exist_ok=True)
    newest = max(options.checkpoints.glob("step-*.params"), default=None)
    model = network()
    if newest:
        model.load_parameters(str(newest))
    else:
        model.initialize(mx.init.Xavier())
    done = int(newest.stem.partition("-")[2]) if newest else 0
    report(f"training on {store.num_workers} workers")
    if done:
        report(f"resuming from step {done}")
    # The servers start with the weights of one worker, which all others get, and keep the state of Adam.
    trainer = gluon.Trainer(model.collect_params(), "adam", {"learning_rate": 5e-3}, kvstore=store)
    lose = gluon.loss.SigmoidBinaryCrossEntropyLoss()
    for step in range(done + 1, options.steps + 1):
        places, inside = points(options.batch, seed=step)
        places, inside = places[store.rank :: store.num_workers], inside[store.rank :: store.num_workers]
        with autograd.record():
            loss = lose(model(places), inside)
        loss.backward()
        trainer.step(len(places) * store.num_workers)
        time.sleep(options.pause)
        if LEADS and (step % options.save_every == 0 or step == options.steps):
            save(model, options.checkpoints, step)
            report(f"step {step} loss {float(loss.mean().asscalar()):.4f}")
    places, inside = points(2000, seed=0)
    right = (model(places).asnumpy().ravel() > 0) == inside.asnumpy()
    report(f"{100 * right.mean():.1f}% of points in the test set are classified correctly")


def main() -> None:
    """Train as the options say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoints", type=Path, required=True, help="a folder that all workers share")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch", type=int, default=256, help="points of a step, all workers together")
    parser.add_argument("--save-every", type=int, default=50, help="steps from one checkpoint to the next")
    default = "dist_sync" if "DMLC_ROLE" in os.environ else "local"
    parser.add_argument("--store", default=default, help="MXNet's kind of store, for example dist_async")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds to wait after each step, to watch it")
    train(parser.parse_args())


if __name__ == "__main__":
    main()
