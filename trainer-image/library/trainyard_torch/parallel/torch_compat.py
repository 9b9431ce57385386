"""Workarounds for torch 2.6 and 2.7: FSDP2 on CPUs, pipelines over gloo, and a last stage whose output is a view.

With torch 2.8 and later nothing here has an effect. For use inside this package only.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn


def before(major: int, minor: int) -> bool:
    """Return whether this is an older release of torch."""
    ours = torch.__version__.split(".")
    return (int(ours[0]), int(ours[1])) < (major, minor)


@cache
def enable_fsdp_on_cpu() -> torch.library.Library | None:
    """Make FSDP2 of torch 2.6 run on CPUs, once per process.

    Returns:
        The objects that must stay alive; the cache keeps them.
    """
    stream = torch.cpu.Stream
    if hasattr(stream, "record_event"):
        return None
    # The CPU's stream class lacks these methods (pytorch pull request 145935). There is nothing to wait for.
    stream.record_event = lambda _, event=None: event or torch.cpu.Event()
    stream.wait_event = lambda _, __: None

    def copy(gathered: torch.Tensor, sizes: list[int], dim: int = 0, *, out: list[torch.Tensor]) -> None:
        # Autograd would take a block that is gathered again for a changed one; on a GPU it does not notice. The .data of a tensor
        # has its own version counter.
        torch.split_with_sizes_copy(gathered, sizes, dim=dim, out=[part.data for part in out])

    library = torch.library.Library("fsdp", "IMPL")
    library.impl("split_with_sizes_copy", copy, "AutogradCPU")
    return library


@contextmanager
def wait_for_whole_batches() -> Iterator[None]:
    """Wait for all messages of a batch inside: torch's schedules wait only for the last one (pytorch issue 132644)."""
    if not before(2, 8):
        yield
        return
    each = dist.batch_isend_irecv
    dist.batch_isend_irecv = lambda ops: [_Batch(each(ops))]
    try:
        yield
    finally:
        dist.batch_isend_irecv = each


class _Batch:
    """Several pending messages. nccl returns one object for a batch already."""

    def __init__(self, works: list[Any]) -> None:
        self._works = works

    def wait(self) -> None:
        for work in self._works:
            work.wait()


def own_last_output(module: nn.Module) -> None:
    """Make the module's output no view of another tensor, as that of a Linear is: the last stage of torch 2.6 cannot detach a view."""
    if before(2, 8):
        # The base is freed at once, so this costs a copy but no memory.
        module.register_forward_hook(lambda _, __, output: output.clone() if output._is_view() else output)  # noqa: SLF001
