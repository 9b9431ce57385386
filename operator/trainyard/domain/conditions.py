"""Standard conditions: an update replaces the stored condition; its time changes only with its status."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import assert_never

from trainyard.api.status import Condition, ConditionType, TrainingJobStatus

ORDER: dict[str, int] = {kind: position for position, kind in enumerate(ConditionType)}
INACTIVE: Mapping[ConditionType, str] = {
    ConditionType.SCHEDULED: "no pod is scheduled",
    ConditionType.RUNNING: "no worker runs",
    ConditionType.RESTARTING: "no restart is in progress",
    ConditionType.RESIZING: "no worker joins",
    ConditionType.SCALING_LIMITED: "no size is limited",
    ConditionType.STRAGGLING: "no rank is slow",
    ConditionType.HANG_SUSPECTED: "no rank hangs",
    ConditionType.HANG_DETECTION_LIMITED: "no hang is looked for",
    ConditionType.STALLED: "nothing blocks the job",
}
"""What each condition says of a job that is suspended, restarts or has finished. Another condition has the cause."""
MAX_MESSAGE_LENGTH = 32768
"""The limit of the CRD, in characters. The API server's rejection of a large template can be longer."""


@dataclass(frozen=True, slots=True)
class SetTrue:
    """Set a condition to True. `reason` is a Reason, or a stored one of a newer operator."""

    kind: ConditionType
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class SetFalse:
    """Set a condition to False."""

    kind: ConditionType
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Clear:
    """Set a condition to False if it is True now."""

    kind: ConditionType
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Remove:
    """Remove a condition: it may not hold any more, and nothing is known of it yet."""

    kind: ConditionType


ConditionUpdate = SetTrue | SetFalse | Clear | Remove


def inactive(kind: ConditionType, because: str) -> str:
    """Return the message of a condition that another condition explains. `because`: what the job does: `the job is suspended`."""
    return f"{INACTIVE[kind]}: {because}"


def apply_conditions(
    status: TrainingJobStatus, updates: Iterable[ConditionUpdate], generation: int, now: datetime
) -> list[Condition]:
    """Return the conditions of `status` with `updates` applied. All others stay as they are, unknown types too."""
    result = {c.type: c for c in status.conditions}
    for update in updates:
        before = result.get(update.kind)
        match update:
            case Remove():
                result.pop(update.kind, None)
            case Clear() if before is None or before.status != "True":
                continue
            case SetTrue() | SetFalse() | Clear():
                result[update.kind] = _updated(before, update, generation, now)
            case _:
                assert_never(update)
    return sorted(result.values(), key=lambda c: ORDER.get(c.type, len(ORDER)))


def _updated(before: Condition | None, update: SetTrue | SetFalse | Clear, generation: int, now: datetime) -> Condition:
    value = "True" if isinstance(update, SetTrue) else "False"
    return Condition(
        type=update.kind,
        status=value,
        reason=update.reason,
        message=update.message[:MAX_MESSAGE_LENGTH],
        last_transition_time=now if before is None or before.status != value else before.last_transition_time,
        observed_generation=generation,
    )
