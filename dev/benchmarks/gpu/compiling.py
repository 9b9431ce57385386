"""`python -m dev.benchmarks.gpu.compiling [bits]`: seconds of torch.compile, the gain, fp8 beside bf16, and whether training repeats bit by bit."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from dev.benchmarks.gpu.model import VOCABULARY, Gpt, emit, loss_of, seconds
from trainyard_torch import Batches, Checkpoints, Loader, Loop, Precision, SampleOrder, compile_model, replicate, start

if TYPE_CHECKING:
    from trainyard_torch.float8 import Scaling

WIDTH, LAYERS, STEPS = 2048, 8, 10
REPEATED = 50
"""Steps of a training that is repeated."""


def trained(precision: Precision, model: torch.nn.Module, length: int, steps: int) -> float:
    """Return seconds per step."""
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    tokens = torch.randint(VOCABULARY, (8, length + 1), device="cuda")

    def some() -> None:
        for _ in range(steps):
            with precision.autocast():
                loss = loss_of(model, tokens)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    return seconds(some) / steps


def formats() -> None:
    """Compare formats, eager and compiled."""
    fp8: list[tuple[str, Scaling]] = [("fp8", "tensorwise"), ("fp8", "rowwise")] if find_spec("torchao") else []
    for name, scaling in [("bf16", "tensorwise"), *fp8]:
        for compiled in (False, True):
            torch.manual_seed(0)
            precision = Precision(name, "cuda")
            model = precision.convert(Gpt(WIDTH, LAYERS).cuda(), scaling=scaling)
            if compiled:
                compile_model(model, dynamic=False)
            first = trained(precision, model, 1024, 1)
            trained(precision, model, 1024, 2)
            step = trained(precision, model, 1024, STEPS)
            figures = {"first_s": first, "step_ms": 1e3 * step}
            if compiled and name == "bf16":
                figures["new_length_s"] = trained(precision, model, 768, 1)
            emit("compile", system=f"{name} {scaling}" if name == "fp8" else name, compiled=compiled, **figures)
            del model
            torch.cuda.empty_cache()
            torch._dynamo.reset()  # noqa: SLF001 - the next model compiles again


def dropping() -> Gpt:
    """Return a GPT whose inputs drop out, so that random numbers of the GPU count."""
    model = Gpt(512, 4)
    model.tokens.register_forward_hook(lambda _layer, _inputs, values: functional.dropout(values, 0.1))
    return model


def repeated(folder: Path, until: int, *, deterministic: bool) -> tuple[list[torch.Tensor], float]:
    """Train to a step, from the checkpoint in the folder if there is one. Returns the parameters, and seconds per step."""
    with start(seed=1, deterministic=deterministic) as training:
        precision = Precision("bf16", training.device)
        model = replicate(dropping().to(training.device), training.mesh)
        optimizer = torch.optim.AdamW(model.parameters())
        tokens = torch.randint(VOCABULARY, (1024, 513), generator=torch.Generator().manual_seed(2))
        loop = Loop(
            training,
            model,
            optimizer,
            Loader(
                tokens,
                Batches(SampleOrder(1024, seed=1), 8, micro_batch_size=8),
                training.data_shard,
                device=training.device,
            ),
            total_steps=until,
            checkpoints=Checkpoints(str(folder), mesh=training.mesh),
            max_grad_norm=1.0,
        )
        began = time.perf_counter()
        for step in loop:
            for batch in step:
                with precision.autocast():
                    loss = loss_of(model, batch)
                step.backward(loss)
        torch.cuda.synchronize()
        took = time.perf_counter() - began
        return [each.detach().clone() for each in model.parameters()], took / until


def bits(*, deterministic: bool) -> None:
    """Train twice from one seed, and once in two parts, and compare the parameters."""
    with tempfile.TemporaryDirectory() as made:
        whole, again, parts = (Path(made, name) for name in ("whole", "again", "parts"))
        first, _ = repeated(whole, REPEATED, deterministic=deterministic)
        second, step = repeated(again, REPEATED, deterministic=deterministic)
        repeated(parts, REPEATED // 2, deterministic=deterministic)
        resumed, _ = repeated(parts, REPEATED, deterministic=deterministic)
    differing = {
        name: sum(int((a != b).sum()) for a, b in zip(first, other, strict=True))
        for name, other in (("repeated", second), ("resumed", resumed))
    }
    emit("bits", deterministic=deterministic, **differing, of=sum(a.numel() for a in first), step_ms=1e3 * step)


def main() -> int:
    """Measure all."""
    with tempfile.TemporaryDirectory() as cache:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache
        if sys.argv[1:] != ["bits"]:
            formats()
    for deterministic in (False, True):
        bits(deterministic=deterministic)
    return 0


if __name__ == "__main__":
    sys.exit(main())
