"""`python -m dev.benchmarks.gpu.compiling`: seconds of torch.compile, the gain, fp8 beside bf16, and whether training repeats bit by bit."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from importlib.util import find_spec

import torch

from dev.benchmarks.gpu.model import VOCABULARY, Gpt, emit, loss_of, seconds
from trainyard_torch import Precision, compile_model, start

WIDTH, LAYERS, STEPS = 2048, 8, 10


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
    names = ["bf16", *(["fp8"] if find_spec("torchao") else [])]
    for name in names:
        for compiled in (False, True):
            torch.manual_seed(0)
            precision = Precision(name, "cuda")
            model = precision.convert(Gpt(WIDTH, LAYERS).cuda())
            if compiled:
                compile_model(model, dynamic=False)
            first = trained(precision, model, 1024, 1)
            trained(precision, model, 1024, 2)
            step = trained(precision, model, 1024, STEPS)
            figures = {"first_s": first, "step_ms": 1e3 * step}
            if compiled and name == "bf16":
                figures["new_length_s"] = trained(precision, model, 768, 1)
            emit("compile", system=name, compiled=compiled, **figures)
            del model
            torch.cuda.empty_cache()
            torch._dynamo.reset()  # noqa: SLF001 - the next model compiles again


def bits(*, deterministic: bool) -> None:
    """Train twice from one seed, and compare the parameters."""
    found, took = [], 0.0
    for _ in range(2):
        with start(seed=1, deterministic=deterministic) as training:
            precision = Precision("bf16", training.device)
            model = Gpt(512, 4).to(training.device)
            began = time.perf_counter()
            optimizer = torch.optim.AdamW(model.parameters())
            generator = torch.Generator("cuda").manual_seed(2)
            for _ in range(40):
                tokens = torch.randint(VOCABULARY, (8, 513), device="cuda", generator=generator)
                with precision.autocast():
                    loss = loss_of(model, tokens)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            torch.cuda.synchronize()
            took = time.perf_counter() - began
            found.append([each.detach().clone() for each in model.parameters()])
    differing = sum(int((a != b).sum()) for a, b in zip(*found, strict=True))
    emit("bits", deterministic=deterministic, differing=differing, of=sum(a.numel() for a in found[0]), seconds=took)


def main() -> int:
    """Measure all."""
    with tempfile.TemporaryDirectory() as cache:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache
        formats()
    for deterministic in (False, True):
        bits(deterministic=deterministic)
    return 0


if __name__ == "__main__":
    sys.exit(main())
