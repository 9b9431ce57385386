"""Process groups come to their end, whatever the last step was."""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from tests.library import processes
from trainyard_torch.parting import destroy

TIMES = 60
"""Of which torch 2.6, left to itself, hangs in one, as a rule."""


def parted(folder: Path) -> bool:
    # Who asks for the interpreter gets it where it is let go, and only there.
    sys.setswitchinterval(1000)
    for number in range(TIMES):
        parts = [torch.zeros(1000) for _ in range(2)]
        dist.all_gather(parts, torch.ones(1000))
        # What a thread of gloo holds is then the last of these.
        del parts
        destroy()
        store = f"file://{folder}/{number}"
        dist.init_process_group("gloo", init_method=store, rank=int(os.environ["RANK"]), world_size=2)
    destroy()
    return dist.is_initialized()


def test_a_group_ends_right_behind_a_collective(tmp_path: Path) -> None:
    assert processes.run(2, tmp_path, parted, tmp_path, patience=60) == [False, False]
