"""How a worker is, judged from its pod."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from trainyard.api.reasons import Reason
from trainyard.domain.state.snapshot import UNSCHEDULABLE, PodView, Trouble

IMAGE_TROUBLE = frozenset(
    {
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
        "ErrImageNeverPull",
        "ImageInspectError",
        "RegistryUnavailable",
        "SignatureValidationFailed",
    },
)
STOPPED = frozenset({128 + 9, 128 + 15})
"""The exit codes of SIGKILL and SIGTERM, with which a pod that has to go is ended."""
OWN_DOING = frozenset({"OOMKilled", "Evicted"})
"""What the node says where it has ended a worker for what that did itself."""


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

    The main container's exit decides, whatever the other containers do, unless it only followed from the pod's being
    taken away. A pod that failed without any container's exit never ran the program: its node refused it.
    """
    if pod.exit and not _followed(pod):
        return State.SUCCEEDED if pod.exit.code == 0 else State.FAILED
    if pod.taken_by or pod.phase == "Failed":
        return State.DISRUPTED
    if pod.phase == "Succeeded":
        return State.SUCCEEDED
    if pod.running:
        return State.RUNNING
    return State.STARTING if pod.scheduled else State.PENDING


def has_stopped(pod: PodView) -> bool:
    """Whether no rank runs in it any more: the containers beside the main one may go on until they are killed."""
    return pod.ended or pod.exit is not None


def _followed(pod: PodView) -> bool:
    """Whether the exit is a consequence of the pod's being taken away.

    The times have whole seconds and come from two clocks, the node's and the API server's; so in the same second, and where the
    node's clock is behind, the worker gets the benefit of the doubt, and an end by the signals with which pods are ended gets it
    always. What the node has ended it for is its own doing all the same.
    """
    if pod.exit is None or pod.taken_by is None:
        return False
    doubt = (pod.exit.code in STOPPED or pod.clock_behind) and pod.exit.reason not in OWN_DOING
    return doubt or pod.taken_at is None or pod.taken_at <= pod.exit.time


@dataclass(frozen=True, slots=True)
class Health:
    """How the group is as a whole, with the reason for what it waits for."""

    scheduled: bool
    running: bool
    reason: Reason
    message: str


def health(pods: Sequence[PodView], wished: int) -> Health:
    """The state of a group of `wished` workers, of which `pods` exist, told by its least well member."""
    states = [state(p) for p in pods]
    placed = sum(s is not State.PENDING for s in states)
    started = sum(s in {State.RUNNING, State.SUCCEEDED} for s in states)
    scheduled = everyone(pods, wished) and placed == len(pods)
    waiting = {State.PENDING, State.STARTING}
    if troubled := [(p, p.trouble) for p, s in zip(pods, states, strict=True) if p.trouble and s in waiting]:
        pod, trouble = troubled[0]
        others = f" (and {len(troubled) - 1} more)" if len(troubled) > 1 else ""
        message = f"pod {pod.name}{others}: {trouble.reason}: {trouble.message}".removesuffix(": ")
        return Health(scheduled, running=False, reason=_reason(pod, trouble), message=message)
    if not scheduled:
        message = f"{placed} of {wished} workers have a node"
        return Health(scheduled, running=False, reason=Reason.WORKERS_PENDING, message=message)
    if started < wished:
        message = f"{started} of {wished} workers have started"
        if late := next((p for p, s in zip(pods, states, strict=True) if s in waiting), None):
            # A volume that cannot be mounted, say, stands in the pod's events alone.
            message += f"; the events of pod {late.name} tell what the next one waits for"
        return Health(scheduled, running=False, reason=Reason.WORKERS_STARTING, message=message)
    message = f"all {wished} workers run or have succeeded" if wished > 1 else "worker 0 runs or has succeeded"
    return Health(scheduled, running=True, reason=Reason.WORKERS_RUNNING, message=message)


def everyone(pods: Sequence[PodView], wished: int) -> bool:
    """Whether each of `wished` workers has a pod."""
    return {p.index for p in pods} >= set(range(wished))


def _reason(pod: PodView, trouble: Trouble) -> Reason:
    if not pod.scheduled:
        return Reason.UNSCHEDULABLE if trouble.reason == UNSCHEDULABLE else Reason.WORKERS_PENDING
    return Reason.IMAGE_PULL_FAILED if trouble.reason in IMAGE_TROUBLE else Reason.CONTAINER_CREATE_FAILED
