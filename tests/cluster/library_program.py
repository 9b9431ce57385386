"""A DDP training with the library: a checkpoint in memory in each step, and one on the volume in each tenth."""

import hashlib
import sys
import time

import torch
from torch.nn.parallel import DistributedDataParallel

from trainyard_torch import Batches, CheckpointPolicy, Checkpoints, SampleOrder, SaveInterval, TrainState, start

STEPS = 120


def main(folder: str) -> None:
    """Train, and print a digest of the weights."""
    with start(seed=3) as training:
        samples = torch.randn(64, 8, generator=torch.Generator().manual_seed(1))
        model = DistributedDataParallel(
            torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.1), torch.nn.Linear(16, 1)),
            # Else DDP reorders its sums after the first step of each start, and the last bit differs.
            find_unused_parameters=True,
        )
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        state = {"train_state": TrainState(model, optimizer)}
        plan = CheckpointPolicy(store=SaveInterval(steps=10), memory=SaveInterval(steps=1))
        checkpoints = Checkpoints(folder, policy=plan, mesh=training.mesh)
        batches = Batches(SampleOrder(len(samples), seed=1), batch_size=12, micro_batch_size=4)
        found = checkpoints.load(state)
        if found:
            batches = batches.at(found.data)
        for step in range(found.step + 1 if found else 1, STEPS + 1):
            training.reseed(step)
            (part,) = batches.step(training.data_shard)
            loss = part.weight * model(samples[part.samples]).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            batches = batches.after()
            time.sleep(0.1)
            training.progress(step, total=STEPS, loss=float(loss.detach()))
            if training.is_rank0:
                print(f"step {step} samples {part.samples.tolist()}", flush=True)  # noqa: T201 - its output
            stop = training.must_stop(step)
            if tier := checkpoints.should_save(step):
                checkpoints.save(step, state, data=batches.state(), tier=tier)
            if stop:
                checkpoints.save(step, state, data=batches.state(), wait=True)
                training.exit()
        checkpoints.save(STEPS, state, data=batches.state(), wait=True)
        if training.is_rank0:
            numbers = b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())
            print(f"weights {hashlib.sha256(numbers).hexdigest()[:16]}", flush=True)  # noqa: T201 - its output


if __name__ == "__main__":
    main(sys.argv[1])
