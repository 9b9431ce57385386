"""Tensor parallel: each matrix spread over processes that compute its product together. The plan is the model's owner's."""

from __future__ import annotations

from fnmatch import fnmatch
from typing import TYPE_CHECKING, TypeVar

from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from trainyard_torch.mesh import size
from trainyard_torch.parallel.alike import make_alike

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor.parallel import ParallelStyle

M = TypeVar("M", bound=nn.Module)


def split_tensors(model: M, mesh: DeviceMesh, plan: Mapping[str, ParallelStyle]) -> M:
    """The same model, the modules of the plan spread over `mesh["tensor"]`; with one process there, as it was.

    To be done first, with the whole model: before `stages`, `shard` and the optimizer. What the plan does not name stays whole on each
    process, and a module of the plan takes and gives whole activations unless its style says otherwise; a module that counts heads has to
    count those that it sees, not those that it was made for.
    Source: Shoeybi et al. 2019, Megatron-LM.

    Args:
        model: on this process's device; the first process's values count.
        mesh: that of `Parallelism.mesh`.
        plan: style by name of module, * for any one part of a name: {"layers.*.up": ColwiseParallel(), "layers.*.down": RowwiseParallel()}.

    Raises:
        ValueError: a name is none of the model's, a module is named twice, its style needs another kind of module, or a size is not
            divided by the tensor degree.
    """
    degree = size(mesh, "tensor")
    modules = dict(model.named_modules())
    seen: dict[str, str] = {}
    for pattern, style in plan.items():
        matched = [name for name in modules if name and _matches(name, pattern)]
        if not matched:
            raise ValueError(
                f"plan: no module is named {pattern!r}; there are {', '.join(list(modules)[1:9])} and so on"
            )
        for name in matched:
            if name in seen:
                raise ValueError(f"plan: {name} is matched by both {seen[name]!r} and {pattern!r}")
            seen[name] = pattern
            _check(name, modules[name], style, degree)
    if degree > 1:
        # What is whole on each process has to stay the same on all of them.
        make_alike(model, mesh["tensor"])
        parallelize_module(model, mesh["tensor"], dict(plan))
    return model


def _matches(name: str, pattern: str) -> bool:
    """As torch does: part by part."""
    parts, wanted = name.split("."), pattern.split(".")
    return len(parts) == len(wanted) and all(map(fnmatch, parts, wanted))


def _check(name: str, module: nn.Module, style: ParallelStyle, degree: int) -> None:
    if not isinstance(style, (ColwiseParallel, RowwiseParallel)):
        return
    columns = isinstance(style, ColwiseParallel)
    if isinstance(module, nn.Linear):
        what, wide = ("out_features", module.out_features) if columns else ("in_features", module.in_features)
    elif isinstance(module, nn.Embedding):
        what, wide = ("embedding_dim", module.embedding_dim) if columns else ("num_embeddings", module.num_embeddings)
    else:
        raise ValueError(  # noqa: TRY004 - the plan's value is wrong
            f"plan: {name} is a {type(module).__name__}, and {type(style).__name__} takes Linear or Embedding"
        )
    if wide % degree:
        raise ValueError(f"plan: {what} of {name} is {wide}, which the tensor degree {degree} does not divide")
