"""Recompute activations in the backward pass in place of keeping them (activation checkpointing), block by block."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager, nullcontext
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.modules.batchnorm import _NormBase  # private, and the base of all modules with running statistics
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator
    from contextlib import AbstractContextManager

Mode = Literal["full", "selective"]

_MARK = "_trainyard_checkpointed"
_OPERATIONS = (
    "mm",
    "addmm",
    "bmm",
    "baddbmm",
    "_scaled_mm",
    "convolution",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
)


def expensive_operations() -> list[Any]:
    """Return torch's operations that take most of a step's time, as far as this release has them: matrix products, convolution, attention."""
    aten = torch.ops.aten
    return [getattr(aten, name).default for name in _OPERATIONS if hasattr(aten, name)]


def checkpoint_activations(
    blocks: Iterable[nn.Module], *, mode: Mode = "full", save: Collection[Any] | None = None
) -> None:
    """Recompute the activations of these modules in the backward pass. In training mode only; names and values stay as they are.

    Call it after `tensor_parallel` and `pipeline_stages`, and before `compile_model`, `replicate` and `shard`.
    Source: Chen et al. 2016, Training Deep Nets with Sublinear Memory Cost; Korthikanti et al. 2022 for the selective mode.

    Args:
        blocks: such as the layers of a transformer. `layers[::2]` are every other layer.
        mode: "full" keeps the inputs of each block only, and computes the block twice. "selective" also keeps the outputs of the operations
            in `save`, and computes the others twice.
        save: operations such as `torch.ops.aten.mm.default`. None: `expensive_operations()`. For the mode "selective" only.

    Raises:
        ValueError: a module is there twice, is checkpointed already, or is within another one. Or it has no forward, is sharded or compiled
            already. Or the mode is unknown, or `save` does not fit the mode.
    """
    if mode not in get_args(Mode):
        raise ValueError(f"mode must be one of {', '.join(get_args(Mode))}, got {mode!r}")
    if save is not None and (mode == "full" or not save):
        raise ValueError('save names the operations that mode="selective" keeps: leave it out, or name at least one')
    chosen = list(blocks)
    _check(chosen)
    options: dict[str, Any] = {}
    if mode == "selective":
        kept = frozenset(expensive_operations() if save is None else save)
        if wrong := [each for each in kept if not isinstance(each, torch._ops.OpOverload)]:  # noqa: SLF001 - no public name
            raise ValueError(
                f"save holds {wrong[0]!r}, which is no operation: name torch.ops.aten.mm.default and the like"
            )
        options["context_fn"] = _keeping(kept)
    for block in chosen:
        # An attribute of the instance: torch's wrapper would change the names of parameters, and the blocks that `shard` takes.
        block.forward = _Recomputed(block, options)
        setattr(block, _MARK, True)


class _Recomputed:
    """The forward of a block that is recomputed. An object, so that a copy of the model gets one of its own block."""

    def __init__(self, block: nn.Module, options: dict[str, Any]) -> None:
        update_wrapper(self, block.forward)
        self._block, self._forward, self._options = block, block.forward, options

    def __call__(self, *inputs: Any, **kwargs: Any) -> Any:
        if not self._block.training or not torch.is_grad_enabled():
            return self._forward(*inputs, **kwargs)
        options = self._options
        # torch.compile takes no context of ours: `compile_model` refuses such a block.
        if not torch.compiler.is_compiling() and (norms := _norms(self._block)):
            options = {**options, "context_fn": _once(norms, options.get("context_fn", _no_contexts))}
        return checkpoint(self._forward, *inputs, use_reentrant=False, **options, **kwargs)


def recomputed_norm(model: nn.Module) -> str | None:
    """Return the name of a recomputed block with running statistics; None if there is none."""
    blocks = {name: block for name, block in model.named_modules() if getattr(block, _MARK, False)}
    return next((name for name, block in blocks.items() if _norms(block)), None)


def _norms(block: nn.Module) -> list[_NormBase]:
    """Return the modules that update running statistics in each forward pass."""
    return [each for each in block.modules() if isinstance(each, _NormBase) and each.track_running_stats]


def _no_contexts() -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
    return nullcontext(), nullcontext()


def _once(norms: list[_NormBase], contexts: Callable[[], Any]) -> Callable[[], Any]:
    """Return the function that makes these contexts, with running statistics as they are in that of the second computation."""

    def both() -> Any:
        first, second = contexts()
        return first, _without_updates(norms, second)

    return both


@contextmanager
def _without_updates(norms: list[_NormBase], inner: AbstractContextManager[Any]) -> Iterator[None]:
    """Enter `inner`, and leave running statistics and the number of batches as they are."""
    with ExitStack() as stack:
        for norm in norms:
            stack.callback(setattr, norm, "momentum", norm.momentum)
            stack.callback(setattr, norm, "num_batches_tracked", norm.num_batches_tracked)
            norm.momentum = 0.0
            if norm.num_batches_tracked is not None:
                norm.num_batches_tracked = norm.num_batches_tracked.clone()
        stack.enter_context(inner)
        yield


def _keeping(kept: frozenset[Any]) -> Callable[[], Any]:
    """Return the function that selects what is kept. No partial and no object: torch.compile takes functions only."""

    def policy(_: Any, operation: Any, *__: Any, **___: Any) -> CheckpointPolicy:
        return CheckpointPolicy.MUST_SAVE if operation in kept else CheckpointPolicy.PREFER_RECOMPUTE

    def contexts() -> Any:
        return create_selective_checkpoint_contexts(policy)

    return contexts


def _check(blocks: list[nn.Module]) -> None:
    """Raise ValueError unless each block can be checkpointed, once."""
    every = set(blocks)
    if len(every) < len(blocks):
        raise ValueError("blocks: a module is there twice")
    for block in blocks:
        kind = type(block).__name__
        if isinstance(block, (nn.ModuleList, nn.ModuleDict)):
            raise ValueError(f"blocks: a {kind} has no forward: name the modules in it")  # noqa: TRY004 - its value
        for module in block.modules():
            if getattr(module, _MARK, False) or (module is not block and module in every):
                raise ValueError(
                    f"blocks: a part of a {kind} would be recomputed twice: name each module once, and no module in it"
                )
            if isinstance(module, FSDPModule) or getattr(module, "_compiled_call_impl", None):
                raise ValueError(f"blocks: a {kind} is sharded or compiled already: call checkpoint_activations before")
