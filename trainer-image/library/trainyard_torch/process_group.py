"""Destroy process groups without the deadlock of gloo's destructor."""

from __future__ import annotations

import atexit
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

_kept: list[object] = []
"""The gloo backends of the groups that were destroyed last."""
# After this, threads that wait for the GIL no longer get it.
atexit.register(_kept.clear)


def destroy(group: dist.ProcessGroup | None = None) -> None:
    """Destroy a process group, or all of them, as `torch.distributed.destroy_process_group` does.

    Before torch 2.8, gloo's destructor waits for its threads while it holds the GIL. A thread that has just finished may wait for the GIL to
    release a tensor that Python has created: one exit in four hung after a last step that was a collective (pytorch/pytorch#154976). Two
    objects may be the last to hold gloo; the one that is kept here lets other threads run. It is kept until the next group is destroyed, or the
    process exits. Release other references to the group, for example of a model, before.
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
        # The backend of devices only.
        return None
