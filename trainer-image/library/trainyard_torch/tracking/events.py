"""Events of a training, independent of the tracking backend. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Literal

Status = Literal["finished", "stopped", "failed"]
"""How an attempt ends: after the last step, by a requested stop with saved state, or by an error."""


@dataclass(frozen=True, slots=True)
class RunStarted:
    """An attempt starts.

    Attributes:
        time: seconds since 1970, as in all events.
        job: the UID of the job from the operator; "" without an operator.
        name: the name of the job, or "".
        attempt: its number, at least 1; 0 if unknown.
        step: the last completed step; None if training starts at step 0.
        base: the name of the checkpoint that it resumes from; "" if it starts at step 0.
        checkpoints: the folder of all checkpoints, or "".
        parameters: the parameters of the training, as texts by name.
    """

    time: float
    job: str = ""
    name: str = ""
    attempt: int = 0
    step: int | None = None
    base: str = ""
    checkpoints: str = ""
    parameters: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MetricsLogged:
    """The metrics of a step."""

    time: float
    step: int
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class CheckpointSaved:
    """A checkpoint was committed.

    Attributes:
        time: the time of the commit.
        step: its last step.
        attempt: the attempt that made it, as counted in the checkpoints' folder.
        path: its folder.
    """

    time: float
    step: int
    attempt: int
    path: str


@dataclass(frozen=True, slots=True)
class RunEnded:
    """The attempt has ended."""

    time: float
    status: Status


Event = RunStarted | MetricsLogged | CheckpointSaved | RunEnded


def flat(given: Any) -> dict[str, str]:
    """Return parameters as texts: nested ones are named `outer.inner`.

    Args:
        given: a mapping, an `argparse.Namespace` or a dataclass.

    Raises:
        ValueError: the object has another type.
    """
    found: dict[str, str] = {}
    for name, value in _items(given):
        if isinstance(value, Mapping) or (is_dataclass(value) and not isinstance(value, type)):
            found.update({f"{name}.{inner}": text for inner, text in flat(value).items()})
        else:
            found[name] = str(value)
    return found


def _items(given: Any) -> list[tuple[str, Any]]:
    if isinstance(given, Mapping):
        return [(str(name), value) for name, value in given.items()]
    if is_dataclass(given) and not isinstance(given, type):
        return [(each.name, getattr(given, each.name)) for each in fields(given)]
    try:
        return list(vars(given).items())
    except TypeError:
        raise ValueError(
            f"parameters must be a mapping, a Namespace or a dataclass, got a {type(given).__name__}"
        ) from None
