"""Small models for the tests of the training library."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


def built(*, shard: int = 0, seed: int = 0) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(6, 12), torch.nn.Tanh(), torch.nn.Linear(12, 2)).double()
    if shard:
        plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
        parallelize_module(model, init_device_mesh("cpu", (dist.get_world_size(),)), plan)
    return model, torch.optim.AdamW(model.parameters(), lr=0.1)


def layers() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3), nn.Linear(3, 4))


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.gelu(self.layer(x))
