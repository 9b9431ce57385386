"""Save and load the state of optimizers by the names of parameters. Nothing is written here.

Exactly the existing state is saved. A parameter that is frozen, or has had no gradient yet, has no state, and has none after loading.
That differs from torch:
torch's own functions (`torch.distributed.checkpoint.state_dict`) need a state of each trainable parameter, and fail with tied ones
(pytorch issue 192202).
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from trainyard_torch.checkpoint import group_settings
from trainyard_torch.checkpoint.parameter_names import of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from torch import nn
    from torch.optim import Optimizer

STATE = "state."


def taken(optimizer: Optimizer, names: Mapping[nn.Parameter, str]) -> dict[str, Any]:
    """Return the state: `state.NAME.KEY` for each parameter that has one, and one entry with the settings of each group.

    Raises:
        ValueError: there is a state of something else than a parameter, or a setting that could not be loaded again.
    """
    packed = optimizer.state_dict()
    found = group_settings.taken(optimizer, packed, names)
    seen = set()
    for name, index in _each(optimizer, packed, names):
        seen.add(index)
        found |= {f"{STATE}{name}.{key}": value for key, value in packed["state"].get(index, {}).items()}
    if odd := packed["state"].keys() - seen:
        raise ValueError(
            f"{type(optimizer).__name__} keeps state for {', '.join(map(str, odd))}, which is not one of its parameters: save it by an object "
            "of its own"
        )
    return found


def ready(optimizer: Optimizer, names: Mapping[nn.Parameter, str], keys: Collection[str]) -> dict[str, Any]:
    """Return the values to be filled in: as `taken`, for the parameters that the checkpoint has, and the settings of all its groups.

    Args:
        optimizer: it gets a state of each parameter that has one in the checkpoint.
        names: the names of the parameters.
        keys: the keys of the checkpoint, as `taken` or an earlier release names them; suffixes are allowed.

    Raises:
        ValueError: the checkpoint has a state that this optimizer does not have.
    """
    keys = frozenset(keys)
    mine = {names[parameter]: parameter for group in optimizer.param_groups for parameter in group["params"]}
    saved = _states(keys, mine)
    if any(not optimizer.state.get(mine[name]) for name in saved):
        initialise(optimizer, [mine[name] for name in saved])
    existing = taken(optimizer, names)
    kept = _states(existing, mine)
    _check_states(optimizer, saved, kept)
    states = {f"{STATE}{key}" for name in saved for key in kept[name].values()}
    values = {key: value for key, value in existing.items() if key in states}
    return values | group_settings.ready(optimizer, names, keys)


def _states(keys: Iterable[str], names: Collection[str]) -> dict[str, dict[str, str]]:
    return of([key.removeprefix(STATE) for key in keys if key.startswith(STATE)], names)


def _check_states(
    optimizer: Optimizer, saved: Mapping[str, Collection[str]], kept: Mapping[str, Collection[str]]
) -> None:
    """Raise ValueError if the checkpoint has a state that this optimizer does not have."""
    for name, parts in saved.items():
        if odd := [part for part in parts if not _has(kept.get(name, {}), part)]:
            raise ValueError(
                f"the checkpoint has {', '.join(sorted(odd))} of {name}, which {type(optimizer).__name__} does not keep: it is of another optimizer"
            )


def put(optimizer: Optimizer, names: Mapping[nn.Parameter, str], found: Mapping[str, Any]) -> None:
    """Load the result of `taken` into the optimizer. Its other state is dropped, except for settings of its groups.

    Args:
        optimizer: an optimizer of the same parameters, in any groups. A group gets the settings of its first parameter that has some.
        names: the names of the parameters.
        found: the values; it may include those of other optimizers.
    """
    packed = optimizer.state_dict()
    states = _states(found, names.values())
    groups = group_settings.put(optimizer, packed, names, found)
    state = {
        index: {part: found[f"{STATE}{key}"] for part, key in states[name].items()}
        for name, index in _each(optimizer, packed, names)
        if name in states
    }
    optimizer.load_state_dict({**packed, "state": state, "param_groups": groups})


def initialise(optimizer: Optimizer, parameters: Collection[nn.Parameter]) -> None:
    """Create the state of these parameters by a step with zero gradients and learning rate 0, as torch does. Fill in the values later.

    This is not a training step: hooks of `optimizer.step()` are not called.

    Args:
        optimizer: the optimizer. The existing state of its other parameters changes.
        parameters: parameters of the optimizer; also frozen ones.
    """
    wanted = set(parameters)
    with _without_hooks(optimizer), _zero_rates(optimizer), _gradients_of(optimizer, wanted):
        optimizer.step()


@contextmanager
def _without_hooks(optimizer: Optimizer) -> Iterator[None]:
    saved = [dict(each) for each in _hooks(optimizer)]
    try:
        for each in _hooks(optimizer):
            each.clear()
        yield
    finally:
        for each, kept in zip(_hooks(optimizer), saved, strict=True):
            each.update(kept)


@contextmanager
def _zero_rates(optimizer: Optimizer) -> Iterator[None]:
    rates = [(group, group["lr"]) for group in optimizer.param_groups if group.get("lr") is not None]
    try:
        for group, rate in rates:
            group["lr"] = torch.zeros_like(rate) if isinstance(rate, torch.Tensor) else 0.0
        yield
    finally:
        for group, rate in rates:
            group["lr"] = rate


@contextmanager
def _gradients_of(optimizer: Optimizer, wanted: Collection[nn.Parameter]) -> Iterator[None]:
    """Set zero gradients for the wanted parameters, and no others."""
    saved = [(parameter, parameter.grad) for group in optimizer.param_groups for parameter in group["params"]]
    try:
        for parameter, _ in saved:
            parameter.grad = torch.zeros_like(parameter) if parameter in wanted else None
        yield
    finally:
        for parameter, gradient in saved:
            parameter.grad = gradient


def _hooks(optimizer: Optimizer) -> list[dict[int, Any]]:
    """Return the hooks that `optimizer.step()` calls before and after."""
    return [optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks]  # noqa: SLF001 - torch has no public list


def _each(
    optimizer: Optimizer, packed: Mapping[str, Any], names: Mapping[nn.Parameter, str]
) -> Iterator[tuple[str, int]]:
    """Yield each parameter's name, and its number in the result of `state_dict`."""
    for group, described in zip(optimizer.param_groups, packed["param_groups"], strict=True):
        for parameter, index in zip(group["params"], described["params"], strict=True):
            yield names[parameter], index


def _has(kept: Collection[str], part: str) -> bool:
    """Return whether this key, or a part of it, is kept."""
    return any(part == each or part.startswith(f"{each}.") for each in kept)
