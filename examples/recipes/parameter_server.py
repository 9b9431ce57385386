# ruff: noqa: INP001, T201 - a user's program: it is run, not imported, and it prints
"""A parameter server: the last process holds the parameters, the others compute gradients; in step, or each at its own pace.

    torchrun --nproc-per-node=3 parameter_server.py --checkpoints /tmp/parameter-server
    torchrun --nproc-per-node=3 parameter_server.py --staleness 4

Source: M. Li et al., "Scaling Distributed Machine Learning with the Parameter Server", OSDI 2014.
"""

from __future__ import annotations

import argparse
import os
from functools import partial
from typing import Any

import torch
from torch import nn

from trainyard_torch import Batches, Checkpoints, DataShard, ProcessInfo, SampleOrder
from trainyard_torch.server import Roles
from trainyard_torch.server.server_state import ServerState
from trainyard_torch.server.session import join_parameter_server

try:
    from trainyard_agent import progress
except ImportError:  # no agent runs this process

    def progress(step: int, *, total: int) -> None:
        """Say how far this process is."""


FEATURES, SAMPLES = 16, 2048


def main() -> None:
    """Train, and say how far it came."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=150, help="of each trainer")
    parser.add_argument("--servers", type=int, default=1)
    parser.add_argument("--staleness", type=int, help="updates that a gradient may be late; left out: all in step")
    parser.add_argument("--checkpoints", help="a folder that outlives trainer 0, or s3://…; left out: there are none")
    options = parser.parse_args()
    torch.manual_seed(1)
    place = ProcessInfo.of(os.environ)
    rank, roles = place.rank, Roles(place.world_size, servers=options.servers)
    model = nn.Sequential(nn.Linear(FEATURES, 64), nn.ReLU(), nn.Linear(64, 1))
    inputs = torch.randn(SAMPLES, FEATURES)
    wanted = inputs[:, :4].square().sum(1, keepdim=True) / 4 - 1
    # Each gradient is a step by itself out of step, and late: less of it, and no momentum beside that which being late is.
    pace = {"lr": 0.05, "momentum": 0.9} if options.staleness is None else {"lr": 0.1, "momentum": 0.0}
    sgd = partial(torch.optim.SGD, **pace)
    # Trainer 0 alone reads and writes them.
    checkpoints = Checkpoints(options.checkpoints) if options.checkpoints and rank == 0 else None
    kept = ServerState()

    def state() -> dict[str, Any] | None:
        if checkpoints:
            checkpoints.load({"servers": kept})
        return kept.state

    with join_parameter_server(model, sgd, roles, rank, staleness=options.staleness, state=state) as parameters:
        if parameters is None:
            return
        if rank == 0:
            # Where the checkpoint is of another pace.
            parameters.configure(**pace)
        # In step each update is one step of all; out of step it is one of a trainer.
        done = parameters.resumed_updates // (1 if options.staleness is None else roles.trainers)
        batches = Batches(SampleOrder(SAMPLES, seed=1), 64, micro_batch_size=64).after(done)
        step = done
        for step, (part,) in zip(
            range(done + 1, options.steps + 1), batches.steps(DataShard(rank, roles.trainers)), strict=False
        ):
            loss = nn.functional.mse_loss(model(inputs[part.samples]), wanted[part.samples])
            loss.backward()
            parameters.push()
            progress(step, total=options.steps)
            if rank == 0 and step % 50 == 0:
                print(f"step {step} loss {float(loss.detach()):.4f} {parameters.counts()}", flush=True)
            if parameters.must_stop():
                break
            if checkpoints and (tier := checkpoints.should_save(step)):
                kept.state = parameters.state_dict()
                # By what the servers have done: trainers may be more or fewer after a restart, and so may their steps.
                checkpoints.save(kept.state["updates"], {"servers": kept}, tier=tier)
        if checkpoints and step > done:
            # Out of step the others may have a gradient under way.
            parameters.wait_for_other_trainers()
            kept.state = parameters.state_dict()
            checkpoints.save(kept.state["updates"], {"servers": kept}, wait=True)


if __name__ == "__main__":
    main()
