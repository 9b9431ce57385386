"""The end of process groups, which with gloo may otherwise be a wait for ever."""

from __future__ import annotations

import atexit
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

_kept: list[object] = []
"""gloo's own objects of the groups that ended last."""
# Later than this, threads that want the interpreter no longer get it.
atexit.register(_kept.clear)


def destroy(group: dist.ProcessGroup | None = None) -> None:
    """Give up a process group, or all of them, as `torch.distributed.destroy_process_group` does.

    Before torch 2.8, gloo's destructor waits for its threads while it holds the GIL. A thread that has just finished may wait for the GIL to release
    go of a tensor that Python has made: one end in four hung where the last step was a collective (pytorch/pytorch#154976). Of the two objects
    that may be the last to hold gloo, the one kept here lets others run. It is kept until the next groups end, or the process: what else holds
    the group (a model, for example) has to be released before.
    """
    kept = [gloo for each in _groups(group) if (gloo := _gloo(each))]
    dist.destroy_process_group(group)
    _kept[:] = kept


def _groups(group: dist.ProcessGroup | None) -> list[Any]:
    return [group] if group else list(distributed_c10d._world.pg_map)  # noqa: SLF001 - torch has no public list


def _gloo(group: Any) -> object:
    try:
        return group._get_backend(torch.device("cpu"))  # noqa: SLF001 - nor a public way to this
    except RuntimeError:
        # It has devices only.
        return None
