"""The names of a model's parameters without wrappers (DDP, torch.compile, activation checkpointing), and their optimizers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from torch import nn
    from torch.optim import Optimizer

WRAPPED = ("_orig_mod", "_checkpoint_wrapped_module")
"""The attributes in which torch.compile and activation checkpointing store the module that they wrap."""


class Names:
    """The names of one model's parts.

    Args:
        model: the model as it is trained.

    Raises:
        ValueError: FSDP's first version is in it.
    """

    def __init__(self, model: nn.Module) -> None:
        self._modules = dict(model.named_modules(remove_duplicate=False))
        self._plain = {"": ""}
        for name, module in self._modules.items():
            if isinstance(module, FullyShardedDataParallel):
                raise ValueError(  # noqa: TRY004 - how it is wrapped is the caller's choice
                    f"{name or 'the model'} is wrapped in FullyShardedDataParallel, whose parameters have no names of their own: take "
                    "trainyard_torch.shard (FSDP2)"
                )
            if isinstance(module, FSDPModule):
                # After a forward pass without backward, full parameters replace those that the optimizer knows.
                module.reshard()
            if name:
                above, _, own = name.rpartition(".")
                inner = own in WRAPPED or (
                    own == "module" and isinstance(self._modules[above], DistributedDataParallel)
                )
                self._plain[name] = self._plain[above] if inner else _joined(self._plain[above], own)

    def plain(self, key: str) -> str:
        """Return the name in the plain model of a key of the model's own state dict."""
        above, _, own = key.rpartition(".")
        while above not in self._plain:
            above, _, more = above.rpartition(".")
            own = f"{more}.{own}"
        return _joined(self._plain[above], own)

    def parameters(self) -> dict[nn.Parameter, str]:
        """Yield each parameter with the first of its names: a tied one has several."""
        found: dict[nn.Parameter, str] = {}
        for name, module in self._modules.items():
            for own, parameter in module.named_parameters(recurse=False):
                found.setdefault(parameter, _joined(self._plain[name], own))
        return found


def parameters(models: Sequence[nn.Module]) -> dict[nn.Parameter, str]:
    """Return the parameters of all of these models, such as a process's stages of a pipeline, by name.

    Raises:
        ValueError: two models have a parameter of the same name, or FSDP's first version is in one.
    """
    found: dict[nn.Parameter, str] = {}
    for model in models:
        own = Names(model).parameters()
        if twice := set(found.values()) & set(own.values()):
            raise ValueError(
                f"two models have a parameter {min(twice)}: stages must keep the names that they have in the full model"
            )
        found.update(own)
    return found


def owned(optimizers: Iterable[Optimizer], names: Mapping[nn.Parameter, str]) -> None:
    """Check that each parameter of the optimizers belongs to the models, and to one optimizer alone.

    Raises:
        ValueError: a parameter does not.
    """
    owners: dict[nn.Parameter, int] = {}
    for number, optimizer in enumerate(optimizers):
        every = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        if foreign := sum(parameter not in names for parameter in every):
            raise ValueError(
                f"{foreign} of the optimizer's {len(every)} parameters are not the model's: create the optimizer after the model is "
                "split, sharded or cut into stages, as that replaces parameters"
            )
        for parameter in every:
            if owners.setdefault(parameter, number) != number:
                raise ValueError(f"{names[parameter]} is in two optimizers: leave it out of one")


def of(keys: Collection[str], names: Collection[str]) -> dict[str, dict[str, str]]:
    """Group keys that start with one of these names and a dot. Return for each name its keys by their suffix."""
    known = frozenset(names)
    found: dict[str, dict[str, str]] = {}
    for key in keys:
        name, _, behind = key.rpartition(".")
        while name and name not in known:
            name, _, more = name.rpartition(".")
            behind = f"{more}.{behind}"
        if name:
            found.setdefault(name, {})[behind] = key
    return found


def _joined(above: str, own: str) -> str:
    return f"{above}.{own}" if above else own
