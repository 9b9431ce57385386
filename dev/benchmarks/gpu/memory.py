"""`python -m dev.benchmarks.gpu.memory`: the memory of a step with several micro-batches, as one of eight ranks that do not exist."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from dev.benchmarks.gpu.model import VOCABULARY, Gpt, emit, loss_of, seconds, size
from trainyard_torch import Parallelism, Precision, checkpoint_activations, gradient_sync, shard

WIDTH, LAYERS, RANKS, PARTS = 2048, 22, 8, 4
GIB = 2**30


def measure(*, whole: bool, recompute: bool) -> None:
    """Train two steps, and print the peak."""
    mesh = Parallelism().mesh(RANKS, "cuda")
    precision = Precision("bf16", "cuda")
    model = Gpt(WIDTH, LAYERS).cuda()
    if recompute:
        checkpoint_activations(model.blocks)
    sharded = shard(model, mesh, blocks=model.blocks, precision=precision, whole_gradients=whole)
    optimizer = torch.optim.AdamW(sharded.parameters(), fused=True)
    tokens = torch.randint(VOCABULARY, (2, 1025), device="cuda")

    def step() -> None:
        for part in range(PARTS):
            with gradient_sync(sharded, part == PARTS - 1), precision.autocast():
                loss = loss_of(sharded, tokens)
                loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    torch.cuda.reset_peak_memory_stats()
    took = seconds(step)
    emit(
        "accumulation",
        whole_gradients=whole,
        recompute=recompute,
        peak_gib=torch.cuda.max_memory_allocated() / GIB,
        kept_gib=torch.cuda.memory_allocated() / GIB,
        step_ms=1e3 * took,
    )


def main() -> int:
    """Measure three settings."""
    torch.cuda.set_device(0)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
    emit("model", parameters=size(Gpt(WIDTH, LAYERS)), whole_gradients_gib=4 * size(Gpt(WIDTH, LAYERS)) / GIB)
    for whole, recompute in ((False, False), (True, False), (False, True)):
        measure(whole=whole, recompute=recompute)
        torch.cuda.empty_cache()
    return 0


if __name__ == "__main__":
    sys.exit(main())
