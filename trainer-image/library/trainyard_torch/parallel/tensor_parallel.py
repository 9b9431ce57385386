"""Tensor parallel: shard matrices over processes that compute their product together, by a plan of the model's owner."""

from __future__ import annotations

from fnmatch import fnmatch
from typing import TYPE_CHECKING, TypeVar

from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from trainyard_torch.mesh import size
from trainyard_torch.parallel.sync_initial_parameters import sync_initial_parameters

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor.parallel import ParallelStyle

M = TypeVar("M", bound=nn.Module)


def tensor_parallel(model: M, mesh: DeviceMesh, plan: Mapping[str, ParallelStyle]) -> M:
    """Shard the modules of the plan over `mesh["tensor"]`, and return the model. With one process, it is unchanged.

    Call it first, on the whole model: before `pipeline_stages`, `shard` and the optimizer. Modules outside of the plan
    are replicated. A planned module takes and returns full activations unless its style says otherwise. A module that
    counts heads must count its local heads.
    Source: Shoeybi et al. 2019, Megatron-LM.

    Args:
        model: the model on this process's device. The values of the first process are used.
        mesh: the mesh of `Parallelism.mesh`.
        plan: styles by module name, with * for any one part of a name: {"layers.*.up": ColwiseParallel(), "layers.*.down": RowwiseParallel()}.

    Raises:
        ValueError: a name matches no module, a module is matched twice, or its style needs another kind of module. Or a size is not
                divisible by the tensor degree, or modules that share a parameter are split in different ways.
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
    before = _Before(model, seen)
    if degree > 1:
        # Replicated parameters must stay equal on all processes.
        sync_initial_parameters(model, mesh["tensor"])
        # By full names: torch warns of a pattern that some modules of its level do not have.
        parallelize_module(model, mesh["tensor"], {name: plan[pattern] for name, pattern in seen.items()})
        before.restore()
    return model


class _Before:
    """Tied and frozen parameters, to be restored after torch has replaced the parameters.

    Raises:
        ValueError: only some of the modules that share a parameter are in the plan.
    """

    def __init__(self, model: nn.Module, planned: Collection[str]) -> None:
        owners: dict[nn.Parameter, list[tuple[str, nn.Module, str]]] = {}
        for name, module in model.named_modules():
            for own, parameter in module.named_parameters(recurse=False):
                owners.setdefault(parameter, []).append((name, module, own))
        self._shared = [shared for shared in owners.values() if len(shared) > 1]
        self._frozen = [shared[0][1:] for parameter, shared in owners.items() if not parameter.requires_grad]
        for shared in self._shared:
            within = [name for name, *_ in shared if name in planned]
            without = [name for name, *_ in shared if name not in planned]
            if within and without:
                raise ValueError(
                    f"plan: {within[0]} and {without[0]} share a parameter (tied weights): name both, or neither"
                )

    def restore(self) -> None:
        """Tie and freeze the parameters again.

        Raises:
            ValueError: a tied parameter is split in different ways.
        """
        for (name, module, own), *others in self._shared:
            first = getattr(module, own)
            for other, owner, called in others:
                here = getattr(owner, called)
                if here is not first and getattr(first, "placements", None) != getattr(here, "placements", None):
                    raise ValueError(
                        f"plan: {name} and {other} share a parameter (tied weights), which would be split in different ways: an Embedding by "
                        "RowwiseParallel goes with a Linear by ColwiseParallel"
                    )
                owner.register_parameter(called, first)
        for module, own in self._frozen:
            getattr(module, own).requires_grad_(False)  # noqa: FBT003 - its only parameter


def _matches(name: str, pattern: str) -> bool:
    """Shard the module as torch does, part by part."""
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
