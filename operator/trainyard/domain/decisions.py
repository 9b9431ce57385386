"""Decisions of the policies: what ends, stops or resumes an attempt. `status.transitions.apply` makes the outcome of each. Pure data."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from trainyard.api.internal_status import Group
from trainyard.api.reasons import Reason
from trainyard.api.status import StatusChanges
from trainyard.domain.conditions import ConditionUpdate

ALL_WORKERS = "restarting all workers"


@dataclass(frozen=True, slots=True)
class Adopt:
    """Adopt the attempt of the workers: the stored status has an earlier one."""

    attempt: int
    group: Group | None
    """The pods of the attempt; None: all were created for it."""
    address: str
    """The address of worker 0 where the rendezvous is open; empty where it is not."""


@dataclass(frozen=True, slots=True)
class Complete:
    """Complete the job: its workers have succeeded."""


@dataclass(frozen=True, slots=True)
class Suspend:
    """Suspend the job: `lifecycle.suspend` is set."""


@dataclass(frozen=True, slots=True)
class Resume:
    """Resume the suspended job."""


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


Decision = Adopt | Complete | Suspend | Resume | Fail | Restart
