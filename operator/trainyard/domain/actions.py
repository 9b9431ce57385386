"""What a plan can ask for. A closed union: whoever carries it out must match all of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from math import ceil
from typing import Literal

from trainyard.api.reasons import Reason
from trainyard.api.status import TrainingJobStatus


@dataclass(frozen=True, slots=True)
class CreateService:
    """Make the headless Service through which workers find each other."""


@dataclass(frozen=True, slots=True)
class CreateWorker:
    """Make the pod of a worker."""

    index: int
    attempt: int
    workers: int
    """How many the group has that it is made for."""


@dataclass(frozen=True, slots=True)
class DeletePod:
    """Delete this very pod, and no other that may bear its name by then."""

    name: str
    uid: str
    reason: Reason


@dataclass(frozen=True, slots=True)
class RemovePod:
    """Take this very pod out of the API although its node has not said that it ended. Nothing else waits for that."""

    name: str
    uid: str
    note: str
    """Why, for people."""


@dataclass(frozen=True, slots=True)
class DeleteJob:
    """Delete the TrainingJob itself."""

    reason: Reason


Action = CreateService | CreateWorker | DeletePod | RemovePod | DeleteJob


@dataclass(frozen=True, slots=True)
class Event:
    """A Kubernetes event, posted once the status that it tells of is stored."""

    type: Literal["Normal", "Warning"]
    reason: Reason
    note: str


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do now: carry out `actions`, store `status`, post `events`, look again after `requeue_after` seconds.

    A plan that moves the job on (a new attempt, the end) holds no actions: the verdict is stored first and acted upon in
    the next pass, from what is stored. So an operator that dies between the two counts nothing twice and forgets nothing.
    """

    status: TrainingJobStatus
    actions: Sequence[Action] = ()
    events: Sequence[Event] = ()
    requeue_after: float | None = None


def whole_seconds(wait: timedelta) -> float:
    """For `requeue_after`: rounded up, since a pass sees whole seconds, and a fraction of one would be waited for again and again."""
    return float(ceil(wait.total_seconds()))


def soonest(waits: Sequence[float]) -> float | None:
    """Return the shortest of these waits, 0 at least; None where there is none."""
    return max(0.0, min(waits)) if waits else None
