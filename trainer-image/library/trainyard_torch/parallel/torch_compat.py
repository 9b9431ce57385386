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
    """Whether this is an older torch."""
    ours = torch.__version__.split(".")
    return (int(ours[0]), int(ours[1])) < (major, minor)


@cache
def enable_fsdp_on_cpu() -> torch.library.Library | None:
    """Let FSDP2 of torch 2.6 run on CPUs: once for the process, as torch knows of one CPU and one registry of kernels.

    Returns:
        What has to stay alive, and does by the cache.
    """
    stream = torch.cpu.Stream
    if hasattr(stream, "record_event"):
        return None
    # The CPU's stream class lacks these methods (pytorch pull request 145935). There is nothing to wait for.
    stream.record_event = lambda _, event=None: event or torch.cpu.Event()
    stream.wait_event = lambda _, __: None

    def copy(gathered: torch.Tensor, sizes: list[int], dim: int = 0, *, out: list[torch.Tensor]) -> None:
        # Autograd would take a block that is gathered again for one that was changed; on a GPU it does not notice. The .data of a tensor
        # has a version of its own.
        torch.split_with_sizes_copy(gathered, sizes, dim=dim, out=[part.data for part in out])

    library = torch.library.Library("fsdp", "IMPL")
    library.impl("split_with_sizes_copy", copy, "AutogradCPU")
    return library


@contextmanager
def wait_for_whole_batches() -> Iterator[None]:
    """Inside, a batch of messages is waited for as one: torch's schedules wait for the last one only (pytorch issue 132644)."""
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
    """Several messages under way; those of nccl are one already."""

    def __init__(self, works: list[Any]) -> None:
        self._works = works

    def wait(self) -> None:
        for work in self._works:
            work.wait()


def own_last_output(module: nn.Module) -> None:
    """Let the module's output be no view of another tensor, as that of a Linear is: torch 2.6's last stage cannot detach one."""
    if before(2, 8):
        # Its base is freed at once, so it costs a copy but no memory.
        module.register_forward_hook(lambda _, __, output: output.clone() if output._is_view() else output)  # noqa: SLF001
