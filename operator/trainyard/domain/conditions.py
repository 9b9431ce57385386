"""Standard conditions: an update replaces the stored condition; its time changes only with its status."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from trainyard.api.status import Condition, ConditionType, TrainingJobStatus

ORDER: dict[str, int] = {kind: position for position, kind in enumerate(ConditionType)}
MAX_MESSAGE_LENGTH = 32768
"""The limit of the CRD, in characters. The API server's rejection of a large template can be longer."""


@dataclass(frozen=True, slots=True)
class ConditionUpdate:
    """The new content of one condition."""

    kind: ConditionType
    holds: bool
    reason: str
    message: str


def condition_true(kind: ConditionType, reason: str, message: str) -> ConditionUpdate:
    """Return the update that sets the condition to True. `reason` is a Reason, or a stored one of a newer operator."""
    return ConditionUpdate(kind, holds=True, reason=reason, message=message)


def condition_false(kind: ConditionType, reason: str, message: str) -> ConditionUpdate:
    """Return the update that sets the condition to False."""
    return ConditionUpdate(kind, holds=False, reason=reason, message=message)


def clear_conditions(
    status: TrainingJobStatus, kinds: Iterable[ConditionType], reason: str, message: str
) -> list[ConditionUpdate]:
    """Return updates that set those of `kinds` to False that are True now."""
    return [condition_false(kind, reason, message) for kind in kinds if status.holds(kind)]


def apply_conditions(
    status: TrainingJobStatus, updates: Iterable[ConditionUpdate], generation: int, now: datetime
) -> list[Condition]:
    """Return the conditions of `status` with `updates` applied. All others stay as they are, unknown types too."""
    result = {c.type: c for c in status.conditions}
    for update in updates:
        value = "True" if update.holds else "False"
        before = result.get(update.kind)
        changed = before is None or before.status != value
        result[update.kind] = Condition(
            type=update.kind,
            status=value,
            reason=update.reason,
            message=update.message[:MAX_MESSAGE_LENGTH],
            last_transition_time=now if changed or before is None else before.last_transition_time,
            observed_generation=generation,
        )
    return sorted(result.values(), key=lambda c: ORDER.get(c.type, len(ORDER)))
