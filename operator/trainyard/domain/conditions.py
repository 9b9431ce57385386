"""Standard conditions: what is said anew replaces what was said; times change only where the answer does."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from trainyard.api.status import Condition, ConditionType, TrainingJobStatus

ORDER: dict[str, int] = {kind: place for place, kind in enumerate(ConditionType)}
LONGEST_MESSAGE = 32768
"""What the CRD allows; an API server's refusal of a large template can be longer."""


@dataclass(frozen=True, slots=True)
class Saying:
    """One condition, as it is to be said."""

    kind: ConditionType
    holds: bool
    reason: str
    message: str


def yes(kind: ConditionType, reason: str, message: str) -> Saying:
    """Say that it is so. `reason` is a Reason, or one that was stored, perhaps by a newer operator."""
    return Saying(kind, holds=True, reason=reason, message=message)


def no(kind: ConditionType, reason: str, message: str) -> Saying:
    """Say that it is not so."""
    return Saying(kind, holds=False, reason=reason, message=message)


def over(status: TrainingJobStatus, kinds: Iterable[ConditionType], reason: str, message: str) -> list[Saying]:
    """Say of those of `kinds` that are so that they are so no more."""
    return [no(kind, reason, message) for kind in kinds if status.holds(kind)]


def said(status: TrainingJobStatus, sayings: Iterable[Saying], generation: int, now: datetime) -> list[Condition]:
    """The conditions of `status` with `sayings` in them. Those not spoken of stay as they are, unknown ones too."""
    result = {c.type: c for c in status.conditions}
    for saying in sayings:
        answer = "True" if saying.holds else "False"
        before = result.get(saying.kind)
        changed = before is None or before.status != answer
        result[saying.kind] = Condition(
            type=saying.kind,
            status=answer,
            reason=saying.reason,
            message=saying.message[:LONGEST_MESSAGE],
            last_transition_time=now if changed or before is None else before.last_transition_time,
            observed_generation=generation,
        )
    return sorted(result.values(), key=lambda c: ORDER.get(c.type, len(ORDER)))
