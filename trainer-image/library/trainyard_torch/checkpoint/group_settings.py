"""Save and load the settings of an optimizer's groups, such as the learning rate, once for each group.

Groups may differ between the save and the load: a pipeline has one for each stage. So each entry names its parameters.
Earlier releases stored each setting once for each parameter, as torch does. With 70 billion parameters on 512 ranks, these were three of
four entries of all plans.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import torch

from trainyard_torch.checkpoint.parameter_names import of
from trainyard_torch.checkpoint.plain_values import check_loadable, load_value

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from torch import nn
    from torch.optim import Optimizer

PREFIX = "group_settings."
"""Before the name of the group's first parameter. The value is the bytes that `torch.save` makes of parameters and settings."""
PER_PARAMETER = "param_groups."
"""Before the name of a parameter and a setting, in checkpoints of earlier releases."""
NO_SETTINGS = ("params", "param_names")


def taken(optimizer: Optimizer, packed: Mapping[str, Any], names: Mapping[nn.Parameter, str]) -> dict[str, Any]:
    """Return an entry for each group that has parameters.

    Args:
        optimizer: the optimizer.
        packed: its state dict.
        names: the names of the parameters.

    Raises:
        UnsafeValueError: a setting could not be loaded again.
    """
    found: dict[str, Any] = {}
    for group, described in zip(optimizer.param_groups, packed["param_groups"], strict=True):
        members = [names[each] for each in group["params"]]
        if members:
            settings = _settings(described)
            check_loadable({f"{PREFIX}{members[0]}": settings})
            stream = io.BytesIO()
            torch.save({"parameters": members, "settings": settings}, stream)
            found[f"{PREFIX}{members[0]}"] = stream.getvalue()
    return found


def ready(optimizer: Optimizer, names: Mapping[nn.Parameter, str], keys: Collection[str]) -> dict[str, Any]:
    """Return the values to be filled in: the entries of all groups, and what earlier releases stored of this optimizer's parameters."""
    values: dict[str, Any] = {key: b"" for key in keys if key.startswith(PREFIX)}
    if any(key.startswith(PER_PARAMETER) for key in keys):
        for group, described in zip(optimizer.param_groups, optimizer.state_dict()["param_groups"], strict=True):
            existing = {
                f"{PER_PARAMETER}{names[each]}.{part}": value
                for each in group["params"]
                for part, value in _settings(described).items()
            }
            values |= {key: value for key, value in existing.items() if key in keys}
    return values


def put(
    optimizer: Optimizer, packed: Mapping[str, Any], names: Mapping[nn.Parameter, str], found: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return the groups of `packed` with the settings of the checkpoint. A group gets those of its first parameter that has some."""
    settings = _per_parameter(found, names.values()) | _per_group(found)
    groups = []
    for group, described in zip(optimizer.param_groups, packed["param_groups"], strict=True):
        first = next((name for each in group["params"] if (name := names[each]) in settings), None)
        saved = settings[first] if first is not None else {}
        groups.append(described | {part: _like(described[part], saved[part]) for part in saved if part in described})
    return groups


def _per_group(found: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the settings of each parameter, from the entries of groups."""
    settings: dict[str, dict[str, Any]] = {}
    for key, value in found.items():
        if key.startswith(PREFIX) and value:
            entry = load_value(io.BytesIO(value), key)
            settings |= dict.fromkeys(entry["parameters"], entry["settings"])
    return settings


def _per_parameter(found: Mapping[str, Any], names: Collection[str]) -> dict[str, dict[str, Any]]:
    """Return the settings of each parameter, from the entries of an earlier release."""
    keys = of([key.removeprefix(PER_PARAMETER) for key in found if key.startswith(PER_PARAMETER)], names)
    return {name: {part: found[f"{PER_PARAMETER}{key}"] for part, key in parts.items()} for name, parts in keys.items()}


def _settings(described: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in described.items() if key not in NO_SETTINGS}


def _like(here: Any, saved: Any) -> Any:
    """Return a setting on the device of the optimizer's own: a learning rate may be a tensor."""
    if isinstance(here, torch.Tensor) and isinstance(saved, torch.Tensor):
        return saved.to(device=here.device, dtype=here.dtype)
    return saved
