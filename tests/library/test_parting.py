"""Process groups come to their end, whatever the last step was."""

import os
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist

from tests.library.support import processes
from trainyard_torch import process_group

TIMES = 60
"""Of which torch 2.6, left to itself, usually hangs in one."""


def parted(folder: Path) -> bool:
    # Who asks for the interpreter gets it where it is let go, and only there.
    sys.setswitchinterval(1000)
    for number in range(TIMES):
        parts = [torch.zeros(1000) for _ in range(2)]
        dist.all_gather(parts, torch.ones(1000))
        # What a thread of gloo holds is then the last of these.
        del parts
        process_group.destroy()
        store = f"file://{folder}/{number}"
        dist.init_process_group("gloo", init_method=store, rank=int(os.environ["RANK"]), world_size=2)
    process_group.destroy()
    return dist.is_initialized()


def test_a_group_ends_right_behind_a_collective(tmp_path: Path) -> None:
    assert processes.run(2, tmp_path, parted, tmp_path, patience=60) == [False, False]


class Slow(np.ndarray):
    """Takes half a second to go, and wants the interpreter once more thereafter."""

    begun = threading.Event()
    """Of the process: that one is going."""

    def __del__(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            Slow.begun.set()
            time.sleep(0.5)


def slowly_parted(groups: int, held: int) -> bool:
    others = [dist.new_group() for _ in range(groups - 1)]
    if dist.get_rank() == 0:
        work = dist.all_reduce(torch.from_numpy(np.zeros(4, np.float32).view(Slow)), async_op=True)
        # The other one is not there yet: so gloo is the last to let go of it.
        del work
        assert Slow.begun.wait(30)
    else:
        time.sleep(0.5)
        dist.all_reduce(torch.zeros(4))
    del others
    elsewhere = dist.group.WORLD if held else None
    process_group.destroy()
    del elsewhere
    # As at the end of a process.
    process_group._kept.clear()
    return dist.is_initialized()


@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("held", [0, 1])
def test_slow_thread_is_waited_for(tmp_path: Path, groups: int, held: int) -> None:
    """`held`: by how many others too, which let go later, as a model does."""
    assert processes.run(2, tmp_path, slowly_parted, groups, held, patience=20) == [False, False]
