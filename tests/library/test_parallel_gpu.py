"""Parallelism where there are GPUs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - as everywhere
from torch import nn

from tests.library.support.models import layers
from tests.library.support.processes import run
from trainyard_torch import (
    Pipeline,
    clip_grad_norm_,
    context_parallel,
    pipeline_stages,
    shard,
)
from trainyard_torch.mesh import Parallelism

if TYPE_CHECKING:
    from pathlib import Path


def on_gpus(backend: str, store: str) -> int:
    """How many ranks there are, with a device each, and a process group that knows of it."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.cuda.set_device(rank)
    dist.destroy_process_group()
    dist.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=world_size)
    return world_size


def offloaded(store: str) -> float:
    """How far a step with parameters in the host's memory is from one without."""
    mesh = Parallelism().mesh(on_gpus("cpu:gloo,cuda:nccl", store), "cuda")
    found = []
    for offload in (False, True):
        model = shard(layers().cuda(), mesh, blocks=[], cpu_offload=offload)
        model(torch.ones(2, 4, device="cuda")).square().sum().backward()
        clip_grad_norm_(model.parameters(), mesh, 0.5)
        torch.optim.SGD(model.parameters(), lr=0.1).step()
        found.append([parameter.to_local().detach() for parameter in model.parameters()])
    assert {values.device.type for values in found[1]} == {"cpu"}
    return max(float((a.cpu() - b).abs().max()) for a, b in zip(*found, strict=True))


@pytest.mark.gpu
def test_parameters_in_the_host_s_memory(tmp_path: Path) -> None:
    assert run(1, tmp_path, offloaded, os.fspath(tmp_path / "nccl")) == [pytest.approx(0, abs=1e-6)]


def attended(store: str) -> float:
    """How far attention over parts of a sequence is from that over all of it, and so the gradient of its queries."""
    world_size = on_gpus("nccl", store)
    mesh = Parallelism(context=world_size).mesh(world_size, "cuda")
    torch.manual_seed(0)
    parts = [torch.randn(2, 2, 64, 32, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]
    attention = F.scaled_dot_product_attention(*parts, is_causal=True).float().square().sum()
    (wanted,) = torch.autograd.grad(attention, parts[0])
    cut = [part.detach().clone() for part in parts]
    with context_parallel(mesh, cut, [2, 2, 2]):
        own = (
            F.scaled_dot_product_attention(*(part.requires_grad_() for part in cut), is_causal=True)
            .float()
            .square()
            .sum()
        )
        (gradient,) = torch.autograd.grad(own, cut[0])
    assert [part.shape for part in cut] == [part.shape for part in parts], "they are restored"
    sums = torch.stack([own.detach(), gradient.float().square().sum()])
    dist.all_reduce(sums)
    whole = torch.stack([attention.detach(), wanted.float().square().sum()])
    return float(((sums - whole).abs() / whole).max())


@pytest.mark.gpu(count=2)
def test_attention_over_parts_of_a_sequence(tmp_path: Path) -> None:
    assert max(run(2, tmp_path, attended, os.fspath(tmp_path / "nccl"))) < 1e-2


def staged(store: str) -> float:
    """How far the loss of a pipeline over two devices is from that of the model on one."""
    world_size = on_gpus("cpu:gloo,cuda:nccl", store)
    mesh = Parallelism(pipeline=world_size).mesh(world_size, "cuda")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Linear(8, 2)).cuda()
    inputs, targets = torch.randn(8, 4, device="cuda"), torch.randn(8, 2, device="cuda")
    alone = float(F.mse_loss(model(inputs), targets).detach())
    pipeline = Pipeline(pipeline_stages(model, mesh), F.mse_loss, mesh, n_microbatches=4)
    return abs(float(pipeline.step(inputs, targets)) - alone)


@pytest.mark.gpu(count=2)
def test_stages_on_two_devices(tmp_path: Path) -> None:
    assert max(run(2, tmp_path, staged, os.fspath(tmp_path / "nccl"))) < 1e-4
