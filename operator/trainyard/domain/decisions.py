"""Decisions of the policies on recovery, deadlines and sizes. `status.transitions.apply` makes the plan of each. Pure data."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from trainyard.api.reasons import Reason
from trainyard.api.status import StatusChanges
from trainyard.domain.conditions import ConditionUpdate

ALL_WORKERS = "restarting all workers"


@dataclass(frozen=True, slots=True)
class Fail:
    """Fail the job permanently."""

    reason: Reason
    message: str
    """The cause, and the limit that the job has reached."""
    changes: StatusChanges = field(default_factory=StatusChanges)
    """The counters with the end of this attempt in them."""


@dataclass(frozen=True, slots=True)
class Restart:
    """End the current attempt and start the next one."""

    reason: Reason
    message: str
    """The cause."""
    scope: str = ALL_WORKERS
    """A verb phrase that says what is restarted."""
    delay_seconds: int = 0
    """Seconds of backoff before the next attempt."""
    changes: StatusChanges = field(default_factory=StatusChanges)
    """The changes of the status beyond those that each new attempt makes."""
    conditions: Sequence[ConditionUpdate] = ()
    """Conditions beyond Restarting and Running."""


Decision = Fail | Restart
