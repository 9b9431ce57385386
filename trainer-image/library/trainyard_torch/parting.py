"""The end of process groups, which with gloo may otherwise be a wait for ever."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d


def destroy(group: dist.ProcessGroup | None = None) -> None:
    """Give up a process group, or all of them, as `torch.distributed.destroy_process_group` does.

    Before torch 2.8 gloo's end waits for its threads and lets nobody run Python meanwhile, while a thread that has just finished waits to let
    go of a tensor that Python has made: one end in four hung where the last step was a collective (pytorch/pytorch#154976). Of the two objects
    that may be the last to hold gloo, the one held here lets others run.
    """
    ended = [group] if group else list(distributed_c10d._world.pg_map)  # noqa: SLF001 - torch has no public list
    held = [gloo for each in ended if (gloo := _gloo(each))]
    dist.destroy_process_group(group)
    del held


def _gloo(group: Any) -> object:
    try:
        return group._get_backend(torch.device("cpu"))  # noqa: SLF001 - nor a public way to this
    except RuntimeError:
        # It has devices only.
        return None
