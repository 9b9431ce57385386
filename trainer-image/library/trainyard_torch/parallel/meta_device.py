"""Give values to a model that was made on the meta device, module by module: no process ever holds all of it.

The values depend on the seed and on names, not on the number of processes or the kinds of parallelism.
"""

from __future__ import annotations

import hashlib
from contextlib import contextmanager
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset  # private, and used by DCP
from torch.utils._python_dispatch import TorchDispatchMode  # private, and documented by torch for such uses
from typing_extensions import override

from trainyard_torch.checkpoint.parameter_names import Names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

M = TypeVar("M", bound=nn.Module)


def initialize_parameters(
    model: M, device: torch.device | str, *, seed: int = 0, init: Callable[[nn.Module], object] | None = None
) -> M:
    """Fill a model that was made on the meta device, and return it. Call it after `shard`, or before `replicate`.

    Each module with parameters or buffers of its own gets them in full size, is initialized, and is cut into shards again. The modules in
    a module come before it. All processes call it; nothing is communicated.

    Args:
        model: the model, or a stage of a pipeline: sharded, or not.
        device: the device of this process; the host's, with `shard(cpu_offload=True)`.
        seed: the seed of the values. Each module gets one of its own, by its name.
        init: initializes the parameters and buffers of one module, but not those of the modules in it. None: `reset_parameters`, which the
            modules of torch have.

    Raises:
        ValueError: the model, or one of its parameters, is not on the meta device. Or a module has no initializer, or it leaves values unset, or changes shapes, or
            draws random values for the shards of another module.
    """
    if not any(tensor.is_meta for tensor in chain(model.parameters(), model.buffers())):
        raise ValueError("no parameter and no buffer is on the meta device: make the model within torch.device('meta')")
    if filled := [name for name, parameter in model.named_parameters() if not parameter.is_meta]:
        raise ValueError(
            f"{filled[0]} is not on the meta device, and would lose its values: make the whole model there, and load values afterwards"
        )
    names = Names(model)
    modules = [(names.plain(name), module) for name, module in model.named_modules() if _own(module)]
    fills = {module: _initializer(name, module, init) for name, module in modules}
    tied = _Ties(model)
    model.to_empty(device=device)
    tied.restore()
    done: set[torch.Tensor] = set()
    for name, module in sorted(modules, key=_depth, reverse=True):
        _fill(name, module, fills[module], seed, done)
    return model


def _depth(named: tuple[str, nn.Module]) -> int:
    return named[0].count(".") + bool(named[0])


def _own(module: nn.Module) -> dict[str, torch.Tensor]:
    """Return the parameters and buffers of the module itself, by name."""
    return dict(chain(module.named_parameters(recurse=False), module.named_buffers(recurse=False)))


def _initializer(name: str, module: nn.Module, init: Callable[[nn.Module], object] | None) -> Callable[[], object]:
    if init is not None:
        return lambda: init(module)
    # torch's MultiheadAttention has the private one.
    for method in ("reset_parameters", "_reset_parameters"):
        if callable(found := getattr(module, method, None)):
            return found  # type: ignore[no-any-return]  # a method of the caller's class
    raise ValueError(
        f"{name or 'the model'} ({type(module).__name__}) has {', '.join(_own(module))} and no reset_parameters(): add it, or pass init"
    )


def _fill(name: str, module: nn.Module, initializer: Callable[[], object], seed: int, done: set[torch.Tensor]) -> None:
    """Initialize one module in full size, and copy this process's part of each tensor that is not filled yet."""
    targets = _own(module)
    whole = {own: _unset(target) for own, target in targets.items()}
    with _replaced(module, whole), _seeded(seed, name, targets), _OnlyOwn(name), torch.no_grad():
        initializer()
        found = _own(module)
    for own, target in targets.items():
        # It may have put another tensor in place of a buffer.
        value = found.get(own)
        if value is None or value.shape != target.shape:
            now = "removes it" if value is None else f"makes it {tuple(value.shape)}"
            raise ValueError(f"{own} of {name} has shape {tuple(target.shape)}, and the module's initializer {now}")
        if not _is_set(value):
            raise ValueError(f"the initializer of {name} ({type(module).__name__}) leaves values of {own} unset")
        # A tied parameter has the values of the module that comes first, as if the others were given its parameter.
        if target not in done:
            done.add(target)
            _copy(value, target)


def _unset(target: torch.Tensor) -> torch.Tensor:
    """Return a tensor of full size, with values that no initializer leaves."""
    device = target.to_local().device if isinstance(target, DTensor) else target.device
    whole = torch.full(target.shape, _sentinel(target.dtype), dtype=target.dtype, device=device)
    return nn.Parameter(whole, requires_grad=target.requires_grad) if isinstance(target, nn.Parameter) else whole


def _sentinel(dtype: torch.dtype) -> float | int | bool:
    if dtype.is_floating_point or dtype.is_complex:
        return float("nan")
    return False if dtype == torch.bool else torch.iinfo(dtype).max - 1


def _is_set(tensor: torch.Tensor) -> bool:
    """Return whether no sentinel is left; a bool tells nothing."""
    if tensor.dtype == torch.bool:
        return True
    sentinel = _sentinel(tensor.dtype)
    return not bool((tensor.isnan() if sentinel != sentinel else tensor == sentinel).any())  # noqa: PLR0124 - NaN


def _copy(whole: torch.Tensor, target: torch.Tensor) -> None:
    with torch.no_grad():
        if not isinstance(target, DTensor):
            target.copy_(whole)
            return
        shape, offset = compute_local_shape_and_global_offset(target.shape, target.device_mesh, target.placements)
        local = target.to_local()
        part = whole
        for dimension, (begin, length) in enumerate(zip(offset, shape, strict=True)):
            part = part.narrow(dimension, min(begin, part.shape[dimension]), length)
        if local.numel():
            local.copy_(part)


@contextmanager
def _replaced(module: nn.Module, tensors: dict[str, torch.Tensor]) -> Iterator[None]:
    """Put these tensors in place of the module's own ones, inside."""
    before = {name: (module._parameters if name in module._parameters else module._buffers) for name in tensors}  # noqa: SLF001 - setattr would refuse
    own = {name: place[name] for name, place in before.items()}
    try:
        for name, place in before.items():
            place[name] = tensors[name]
        yield
    finally:
        for name, place in before.items():
            place[name] = own[name]


@contextmanager
def _seeded(seed: int, name: str, targets: dict[str, torch.Tensor]) -> Iterator[None]:
    """Seed the generators inside by the name of a module. Afterwards they are as before."""
    number = int.from_bytes(hashlib.sha256(f"{seed} {name}".encode()).digest()[:8], "big") >> 1
    kinds = {target.device for target in targets.values() if target.device.type != "cpu"}
    with torch.random.fork_rng(devices=[device.index or 0 for device in kinds], device_type=_kind(kinds)):
        torch.manual_seed(number)
        yield


def _kind(devices: set[torch.device]) -> str:
    return next((device.type for device in devices), "cuda")


class _OnlyOwn(TorchDispatchMode):  # type: ignore[misc]  # torch is there where this runs
    """Refuse random values for shards: each process would draw the same for its own part."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    @override
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.nondeterministic_seeded in func.tags and any(issubclass(kind, DTensor) for kind in types):
            raise ValueError(
                f"the initializer of {self._name} draws random values for the shards of a module in it: each module may only initialize "
                "its own parameters"
            )
        return func(*args, **(kwargs or {}))


class _Ties:
    """The parameters that several modules share: `to_empty` would make one of each."""

    def __init__(self, model: nn.Module) -> None:
        owners: dict[nn.Parameter, list[tuple[nn.Module, str]]] = {}
        for module in model.modules():
            for name, parameter in module.named_parameters(recurse=False):
                owners.setdefault(parameter, []).append((module, name))
        self._shared = [places for places in owners.values() if len(places) > 1]

    def restore(self) -> None:
        """Give all of them the parameter of the first, which is the one that FSDP keeps."""
        for (first, name), *others in self._shared:
            for module, own in others:
                module.register_parameter(own, getattr(first, name))
