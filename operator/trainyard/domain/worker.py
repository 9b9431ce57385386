"""How a worker is, judged from its pod."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from trainyard.api.reasons import Reason
from trainyard.domain.model import PodView, Trouble

IMAGE_TROUBLE = frozenset(
    {
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
        "ErrImageNeverPull",
        "ImageInspectError",
        "RegistryUnavailable",
    },
)
CONTAINER_TROUBLE = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})


class State(StrEnum):
    """The states of a worker."""

    PENDING = "Pending"
    STARTING = "Starting"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    DISRUPTED = "Disrupted"


def state(pod: PodView) -> State:
    """The state of the worker in `pod`.

    The main container's exit decides, whatever the other containers do, unless the pod was taken away before: then the
    exit is only the consequence. Both times have whole seconds; in the same second the worker gets the benefit of the
    doubt. A pod that failed without any container's exit never ran the program: its node refused or evicted it.
    """
    if pod.exit and not (pod.taken_at and pod.taken_at <= pod.exit.time):
        return State.SUCCEEDED if pod.exit.code == 0 else State.FAILED
    if pod.taken_at or pod.phase == "Failed":
        return State.DISRUPTED
    if pod.phase == "Succeeded":
        return State.SUCCEEDED
    if pod.running:
        return State.RUNNING
    return State.STARTING if pod.scheduled else State.PENDING


@dataclass(frozen=True, slots=True)
class Health:
    """How the group is as a whole, with the reason for what it waits for."""

    scheduled: bool
    running: bool
    reason: Reason
    message: str


def health(pods: Sequence[PodView], wished: int) -> Health:
    """The state of a group of `wished` workers, of which `pods` exist, told by its least well member."""
    waiting = [p for p in pods if state(p) in {State.PENDING, State.STARTING}]
    missing = wished - len(pods)
    scheduled = missing == 0 and all(state(p) is not State.PENDING for p in pods)
    if troubled := [(p, p.trouble) for p in waiting if p.trouble]:
        pod, trouble = troubled[0]
        others = f" (and {len(troubled) - 1} more)" if len(troubled) > 1 else ""
        message = f"pod {pod.name}{others}: {trouble.reason}: {trouble.message}".removesuffix(": ")
        return Health(scheduled, running=False, reason=_reason(pod, trouble), message=message)
    if missing or not scheduled:
        placed = sum(state(p) is not State.PENDING for p in pods)
        return Health(
            scheduled, running=False, reason=Reason.WORKERS_PENDING, message=f"{placed} of {wished} workers have a node"
        )
    if waiting:
        started = f"{len(pods) - len(waiting)} of {wished} workers have started"
        return Health(scheduled, running=False, reason=Reason.WORKERS_STARTING, message=started)
    return Health(
        scheduled, running=True, reason=Reason.WORKERS_RUNNING, message=f"all {wished} workers run or have succeeded"
    )


def _reason(pod: PodView, trouble: Trouble) -> Reason:
    if not pod.scheduled:
        return Reason.UNSCHEDULABLE
    return Reason.IMAGE_PULL_FAILED if trouble.reason in IMAGE_TROUBLE else Reason.CONTAINER_CREATE_FAILED
