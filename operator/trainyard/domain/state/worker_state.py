"""Derive the state of a worker from its pod. Pure."""

import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from trainyard.api.reasons import Reason
from trainyard.domain.state.snapshot import UNSCHEDULABLE, PodIssue, PodView
from trainyard.domain.wording import counted

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
VOLUME_EVENTS = frozenset({"FailedMount", "FailedAttachVolume", "FailedMapVolume"})
"""The reasons of events about a volume that keeps a pod from starting."""
START_EVENTS = VOLUME_EVENTS | {"FailedCreatePodSandBox", "NetworkNotReady", "FailedPrepareDynamicResources"}
"""The reasons of events about what keeps a pod from starting, where its status does not report it."""
INIT_RUNNING = "InitContainerRunning"
"""The reason of a pod whose init container runs for long."""
START_REASONS = {
    **dict.fromkeys(IMAGE_ERRORS, Reason.IMAGE_PULL_FAILED),
    **dict.fromkeys(VOLUME_EVENTS, Reason.VOLUME_MOUNT_FAILED),
    INIT_RUNNING: Reason.INIT_CONTAINER_SLOW,
}
"""By what a node reports about a pod that has a node and does not start."""
STOP_SIGNALS = ("SIGHUP", "SIGINT", "SIGQUIT", "SIGKILL", "SIGUSR1", "SIGUSR2", "SIGTERM")
"""Signals that terminate a deleted pod: sent by the kubelet, set as STOPSIGNAL in images, or sent by preStop hooks."""
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


def waits_silently(pod: PodView) -> bool:
    """Return whether the pod has a node and does not start, and its status does not report why."""
    return state(pod) is State.STARTING and pod.issue is None and not pod.init_container


def has_stopped(pod: PodView) -> bool:
    """Return whether no rank runs in the pod any more. Its other containers may run until they are killed."""
    return pod.ended or pod.exit is not None


def _caused_by_disruption(pod: PodView) -> bool:
    """Return whether a disruption of the pod caused the exit.

    Times have whole seconds and come from two clocks, the node's and the API server's. So an exit in the same second,
    or on a node whose clock is behind, counts as caused by the disruption. An exit by the signals of a deletion always
    does. An exit that the worker caused by its own use of resources never does.
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
    obstacle: str = field(default="", compare=False)
    """What keeps a pod from starting, without the pod and without counts; empty where nothing does."""


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
        what = f"{issue.reason}: {issue.message}".removesuffix(": ")
        subject = f" ({issue.subject})" if issue.subject else ""
        message, reason = f"pod {pod.name}{others}: {what}{subject}", _reason(pod, issue)
        # A failed pull has a new message for each try.
        obstacle = issue.subject if reason is Reason.IMAGE_PULL_FAILED else f"{issue.message or issue.reason}{subject}"
        return Health(scheduled, running=False, reason=reason, message=message, obstacle=obstacle)
    if not scheduled:
        unplaced = desired - scheduled_count
        waits = "1 waits for a node" if unplaced == 1 else f"{unplaced} wait for a node"
        message = f"{started} of {counted(desired, 'worker')} started; {waits}"
        return Health(scheduled, running=False, reason=Reason.WORKERS_PENDING, message=message)
    if started < desired:
        message = f"{started} of {desired} workers have started"
        if late := next((p for p, s in zip(pods, states, strict=True) if s in waiting), None):
            runs = f"pod {late.name} runs init container {late.init_container}"
            # It may be young. Later, the issue says what its events say.
            message += f"; {runs}" if late.init_container else f"; see the events of pod {late.name}"
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
    return START_REASONS.get(issue.reason, Reason.CONTAINER_CREATE_FAILED)
