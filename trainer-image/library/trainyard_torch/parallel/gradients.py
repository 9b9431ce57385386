"""Synchronize gradients of replicated and sharded models."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING
from weakref import WeakSet

from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from trainyard_torch.parallel.data_parallel import Replicated, alone

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn


WHOLE_GRADIENTS: WeakSet[FSDPModule] = WeakSet()
"""The modules that keep whole gradients until the last micro-batch of a step (`shard(whole_gradients=True)`)."""


def gradient_sync(model: nn.Module, enabled: bool) -> AbstractContextManager[None]:  # noqa: FBT001 - the only setting
    """Return a context manager that enables or disables gradient synchronization in the backward passes inside.

    DDP synchronizes in the last micro-batch of a step alone. FSDP reduce-scatters in each, so that no process keeps whole gradients, and with
    copies in the mesh (HSDP) averages these in the last alone. Forward passes belong inside, too. Modules that are wrapped by DDP or FSDP inside
    the model count as well. A plain module never synchronizes. A `Pipeline` synchronizes by itself after the last micro-batch of a step.

    Args:
        model: the result of `replicate` or `shard`, or a module that contains such results.
        enabled: `MicroBatch.last`.
    """
    return GradientSync(model).enabled_if(enabled)


class GradientSync:
    """The modules of a model that synchronize gradients.

    They are found once: a model may have thousands of modules, and a step takes few milliseconds.

    Args:
        model: as for `gradient_sync`. Modules that are wrapped later are not known.
    """

    def __init__(self, model: nn.Module) -> None:
        self._averaged = [module for module in model.modules() if isinstance(module, DistributedDataParallel)]
        self._sharded = [module for module in model.modules() if isinstance(module, FSDPModule)]

    def enabled_if(self, enabled: bool) -> AbstractContextManager[None]:  # noqa: FBT001 - as above
        """Return the context manager of `gradient_sync`."""
        return self._enabled_if(enabled=enabled) if self._averaged or self._sharded else nullcontext()

    @contextmanager
    def _enabled_if(self, *, enabled: bool) -> Iterator[None]:
        with ExitStack() as stack:
            for module in self._averaged:
                if not (isinstance(module, Replicated) and module.passes) and (not enabled or alone(module)):
                    stack.enter_context(module.no_sync())
            for module in self._sharded:
                whole = module in WHOLE_GRADIENTS
                require = module.set_requires_gradient_sync if whole else module.set_requires_all_reduce
                require(enabled, recurse=False)
                stack.callback(require, True, recurse=False)  # noqa: FBT003 - it is positional there
            yield
