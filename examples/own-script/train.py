# ruff: noqa: INP001, T201 - a user's program: it is run, not imported, and it prints
"""A script of your own: plain PyTorch, a checkpoint on a volume, and its progress in `kubectl get tj`."""

import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

try:
    from trainyard_agent import progress
except ImportError:  # the same script runs on a laptop

    def progress(*_: object, **__: object) -> None:
        """Report nothing."""


STEPS = int(os.environ.get("STEPS", "200"))
CHECKPOINT = Path(os.environ.get("CHECKPOINTS", ".")) / "model.pt"


def main() -> None:
    """Fit a line, from the last checkpoint on."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    first = 1
    if CHECKPOINT.exists():
        stored = torch.load(CHECKPOINT, weights_only=True)
        model.module.load_state_dict(stored["model"])
        first = stored["step"] + 1
        print(f"rank {rank} continues with step {first}")
    for step in range(first, STEPS + 1):
        x = torch.rand(32, 1)
        loss = torch.nn.functional.mse_loss(model(x), 3 * x + 1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        progress(step, total=STEPS, loss=loss.item())
        if step % 50 == 0:
            if rank == 0:
                partial = CHECKPOINT.with_suffix(".tmp")
                torch.save({"model": model.module.state_dict(), "step": step}, partial)
                partial.replace(CHECKPOINT)
            print(f"rank {rank} step {step} loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
