"""Derive the state of a worker from its pod. Pure."""

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from trainyard.api.reasons import Reason
from trainyard.domain.state.snapshot import UNSCHEDULABLE, PodIssue, PodView

IMAGE_ERRORS = frozenset(
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
STOP_SIGNALS = ("SIGHUP", "SIGINT", "SIGQUIT", "SIGKILL", "SIGUSR1", "SIGUSR2", "SIGTERM")
"""Signals that terminate a deleted pod: the kubelet's, those that images name as STOPSIGNAL, and those that preStop hooks send."""
STOP_SIGNAL_CODES = frozenset(128 + signal.Signals[name] for name in STOP_SIGNALS)
"""The exit codes of programs that end by them."""
CAUSED_BY_WORKER = frozenset({"OOMKilled", "Evicted"})
"""The reasons of a node that has terminated a worker for its own use of resources."""


class State(StrEnum):
    """The states of a worker."""

    PENDING = "Pending"
    STARTING = "Starting"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    DISRUPTED = "Disrupted"


def state(pod: PodView) -> State:
    """Return the state of the worker in `pod`.

    The main container's exit decides, whatever the other containers do, unless a disruption of the pod caused it. A pod
    that failed without any container's exit never ran the program: its node rejected it.
    """
    if pod.exit and not _caused_by_disruption(pod):
        return State.SUCCEEDED if pod.exit.code == 0 else State.FAILED
    if pod.disruption or pod.phase == "Failed":
        return State.DISRUPTED
    if pod.phase == "Succeeded":
        return State.SUCCEEDED
    if pod.running:
        return State.RUNNING
    return State.STARTING if pod.scheduled else State.PENDING


def has_stopped(pod: PodView) -> bool:
    """Return whether no rank runs in the pod any more. Its other containers may run until they are killed."""
    return pod.ended or pod.exit is not None


def _caused_by_disruption(pod: PodView) -> bool:
    """Return whether a disruption of the pod caused the exit.

    Times have whole seconds and come from two clocks, the node's and the API server's. So an exit in the same second, or on
    a node whose clock is behind, counts as caused by the disruption; an exit by the signals of a deletion always does. An
    exit that the worker caused by its own use of resources never does.
    """
    if pod.exit is None or pod.disruption is None:
        return False
    doubt = (pod.exit.code in STOP_SIGNAL_CODES or pod.clock_behind) and pod.exit.reason not in CAUSED_BY_WORKER
    return doubt or pod.disrupted_at is None or pod.disrupted_at <= pod.exit.time


@dataclass(frozen=True, slots=True)
class Health:
    """The state of the group as a whole, and why it waits."""

    scheduled: bool
    running: bool
    reason: Reason
    message: str


def health(pods: Sequence[PodView], desired: int) -> Health:
    """Return the state of a group of `desired` workers, of which `pods` exist: that of its least healthy worker."""
    states = [state(p) for p in pods]
    scheduled_count = sum(s is not State.PENDING for s in states)
    started = sum(s in {State.RUNNING, State.SUCCEEDED} for s in states)
    scheduled = all_present(pods, desired) and scheduled_count == len(pods)
    waiting = {State.PENDING, State.STARTING}
    if blocked := [(p, p.issue) for p, s in zip(pods, states, strict=True) if p.issue and s in waiting]:
        pod, issue = blocked[0]
        others = f" (and {len(blocked) - 1} more)" if len(blocked) > 1 else ""
        message = f"pod {pod.name}{others}: {issue.reason}: {issue.message}".removesuffix(": ")
        return Health(scheduled, running=False, reason=_reason(pod, issue), message=message)
    if not scheduled:
        message = f"{scheduled_count} of {desired} workers are scheduled"
        return Health(scheduled, running=False, reason=Reason.WORKERS_PENDING, message=message)
    if started < desired:
        message = f"{started} of {desired} workers have started"
        if late := next((p for p, s in zip(pods, states, strict=True) if s in waiting), None):
            # Only the events of the pod name, for example, a volume that cannot be mounted.
            message += f"; see the events of pod {late.name}"
        return Health(scheduled, running=False, reason=Reason.WORKERS_STARTING, message=message)
    message = (
        f"all {desired} workers are running or have succeeded"
        if desired > 1
        else "worker 0 is running or has succeeded"
    )
    return Health(scheduled, running=True, reason=Reason.WORKERS_RUNNING, message=message)


def all_present(pods: Sequence[PodView], desired: int) -> bool:
    """Return whether each of `desired` workers has a pod."""
    return {p.index for p in pods} >= set(range(desired))


def _reason(pod: PodView, issue: PodIssue) -> Reason:
    if not pod.scheduled:
        return Reason.UNSCHEDULABLE if issue.reason == UNSCHEDULABLE else Reason.WORKERS_PENDING
    return Reason.IMAGE_PULL_FAILED if issue.reason in IMAGE_ERRORS else Reason.CONTAINER_CREATE_FAILED
