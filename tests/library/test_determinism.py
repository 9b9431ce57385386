"""What `start(deterministic=True)` sets, and random numbers of tensors that are spread over GPUs."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch
from torch.distributed.tensor import Replicate, distribute_tensor

from trainyard_torch import start

PROGRAM = """
import json, os, torch
from trainyard_torch import start
with start(device="cpu", deterministic=True):
    pass
print(json.dumps({
    "enabled": torch.are_deterministic_algorithms_enabled(),
    "fills": torch.utils.deterministic.fill_uninitialized_memory,
    "cudnn": [torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark],
    "environment": {name: os.environ[name] for name in sorted(os.environ) if name.startswith(("NCCL_", "CUBLAS_"))},
}))
"""


def test_all_that_makes_bits_differ_is_set() -> None:
    given = {**os.environ, "NCCL_PROTO": "LL128"}
    output = subprocess.run([sys.executable, "-c", PROGRAM], env=given, capture_output=True, text=True, check=True)
    assert json.loads(output.stdout.splitlines()[-1]) == {
        "enabled": True,
        "fills": False,
        "cudnn": [True, False],
        "environment": {
            "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
            "NCCL_ALGO": "Ring",
            "NCCL_COLLNET_ENABLE": "0",
            "NCCL_LAUNCH_MODE": "GROUP",
            "NCCL_NVLS_ENABLE": "0",
            "NCCL_PROTO": "LL128",
        },
    }


@pytest.mark.gpu
def test_dropout_of_distributed_tensors_is_seeded() -> None:
    with start() as training:
        drawn = []
        for step in (1, 1, 2):
            training.reseed(step)
            ones = distribute_tensor(torch.ones(64, device=training.device), training.mesh["tensor"], [Replicate()])
            drawn.append(torch.nn.functional.dropout(ones).to_local().tolist())
        assert drawn[0] == drawn[1] != drawn[2]
