"""`python -m dev.benchmarks.gpu.steps`: a step of the library's loop beside one by hand, and what it counts as compute time."""

from __future__ import annotations

import sys
import time
import warnings
from statistics import median
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.data import TensorDataset

from dev.benchmarks.gpu.model import VOCABULARY, Gpt, emit, loss_of, seconds, size
from dev.benchmarks.options import turns
from trainyard_torch import (
    Batches,
    Loader,
    Loop,
    Monitor,
    Precision,
    ProfilerConfig,
    SampleOrder,
    replicate,
    shard,
    start,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainyard_torch import Training

BATCH, LENGTH, WARMUP, STEPS, TURNS = 8, 1024, 10, 20, 4
SLEEP_MS = 200


def by_hand(training: Training, *, sharded: bool) -> Iterator[None]:
    """Train as a careful program does without the library."""
    torch.manual_seed(0)
    model = Gpt().to(training.device)
    if sharded:
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for module in (*model.blocks, model):
            fully_shard(module, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    data = torch.randint(VOCABULARY, (64, BATCH, LENGTH + 1)).pin_memory()
    while True:
        for host in data:
            tokens = host.to(training.device, non_blocking=True)
            with torch.autocast("cuda", torch.bfloat16):
                loss = loss_of(model, tokens)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            yield


def by_library(training: Training, *, sharded: bool) -> Iterator[None]:
    """Train the same by the library's loop."""
    torch.manual_seed(0)
    plain, precision = Gpt().to(training.device), Precision("bf16", training.device)
    model: nn.Module
    if sharded:
        model = shard(plain, training.mesh, blocks=plain.blocks, precision=precision)
    else:
        model = replicate(plain, training.mesh)
    samples = TensorDataset(torch.randint(VOCABULARY, (64 * BATCH, LENGTH + 1)))
    data = Loader(
        samples,
        Batches(SampleOrder(len(samples)), BATCH, micro_batch_size=BATCH),
        training.data_shard,
        device=training.device,
    )
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    loop = Loop(training, model, optimizer, data, total_steps=10**6, precision=precision, max_grad_norm=1.0)
    for step in loop:
        for (tokens,) in step:
            step.backward(loss_of(model, tokens))
        yield


def compare(training: Training) -> None:
    """Measure the three in turns."""
    systems: dict[str, Iterator[None]] = {
        "by hand": by_hand(training, sharded=False),
        "replicate": by_library(training, sharded=False),
        "fully_shard by hand": by_hand(training, sharded=True),
        "shard": by_library(training, sharded=True),
    }
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in systems}
    syncs = 0
    for name, steps in systems.items():
        for _ in range(WARMUP):
            next(steps)
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("warn")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(5):
                next(steps)
        torch.cuda.set_sync_debug_mode("default")
        waits = [each for each in caught if "synchroniz" in str(each.message)]
        syncs += len(waits)
        emit(
            "synchronizations",
            system=name,
            steps=5,
            waits=len(waits),
            where=sorted({f"{w.filename}:{w.lineno}" for w in waits}),
        )
    for turn in range(TURNS):
        for name in turns([*systems], turn):
            host = [0.0]

            def some(steps: Iterator[None] = systems[name], host: list[float] = host) -> None:
                began = time.thread_time()
                for _ in range(STEPS):
                    next(steps)
                host[0] = time.thread_time() - began

            found[name].append((seconds(some) / STEPS, host[0] / STEPS))
    parameters = size(Gpt())
    for name, figures in found.items():
        wall, cpu = (median(each) for each in zip(*figures, strict=True))
        base = median(each[0] for each in found["fully_shard by hand" if "shard" in name else "by hand"])
        flops = 6 * parameters * BATCH * LENGTH / wall
        emit("step", system=name, ms=1e3 * wall, host_ms=1e3 * cpu, ratio=wall / base, tflops=flops / 1e12)


class Slow(torch.autograd.Function):  # type: ignore[misc]  # torch is not at hand where types are checked
    """Passes values on. Its backward pass takes `SLEEP_MS` of the GPU's time."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor) -> torch.Tensor:  # noqa: ARG004 - torch's signature
        """Return a copy."""
        return values.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # noqa: ARG004 - torch's signature
        """Let the GPU spin."""
        torch.cuda._sleep(int(SLEEP_MS * 1.7e6))  # noqa: SLF001 - cycles of the GPU; there is no public way
        return gradient


def own_time() -> None:
    """Compare the compute time of a forward pass with that of one whose backward pass is slow."""
    weights = torch.randn(4096, 4096, device="cuda", requires_grad=True)
    for name, act in (("usual backward", lambda values: values), ("slow backward", Slow.apply)):
        monitor = Monitor(profiler=ProfilerConfig(signal=False), compute_phases=("data", "forward"))

        def step(number: int, monitor: Monitor = monitor, act: Any = act) -> None:
            with monitor.phase("forward"):
                loss = act(weights @ weights).square().mean()
                with monitor.phase("backward"):
                    loss.backward()
            monitor.step(number, samples=1, loss=loss.detach())

        whole = seconds(lambda step=step: [step(number) for number in range(12)]) / 12
        seconds(lambda step=step: step(12))
        own = monitor.snapshot().compute_seconds or 0.0
        emit("own time", system=name, own_ms=1e3 * own, step_ms=1e3 * whole)
        monitor.close()


def main() -> int:
    """Run all."""
    with start(seed=1) as training:
        compare(training)
        own_time()
    return 0


if __name__ == "__main__":
    sys.exit(main())
