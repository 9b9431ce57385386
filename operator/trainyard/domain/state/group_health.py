"""Derive the health of a group from its pods: whether it runs, and what keeps a pod from starting. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from trainyard.api.reasons import Reason
from trainyard.api.roles import is_worker
from trainyard.domain.state.worker_views import UNSCHEDULABLE, PodIssue, PodView, State
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


def waits_silently(pod: PodView) -> bool:
    """Return whether the pod has a node and does not start, and its status does not report why."""
    return pod.state is State.STARTING and pod.issue is None and not pod.init_container


@dataclass(frozen=True, slots=True)
class Health:
    """The state of the group as a whole, and why it waits."""

    scheduled: bool
    running: bool
    reason: Reason
    message: str
    obstacle: str = field(default="", compare=False)
    """What keeps a pod from starting, without the pod and without counts; empty where nothing does."""


def health(pods: Sequence[PodView], members: Sequence[int]) -> Health:
    """Return the state of the group with these members, of which `pods` exist: that of its least healthy member."""
    desired, thing = len(members), "worker" if all(map(is_worker, members)) else "member"
    states = [pod.state for pod in pods]
    placed, started = len(pods) - states.count(State.PENDING), sum(map(states.count, (State.RUNNING, State.SUCCEEDED)))
    scheduled = _all_present(pods, members) and placed == len(pods)
    waiting = [pod for pod, at in zip(pods, states, strict=True) if at in {State.PENDING, State.STARTING}]
    if blocked := [(pod, pod.issue) for pod in waiting if pod.issue]:
        return _blocked(*blocked[0], others=len(blocked) - 1, scheduled=scheduled)
    if not scheduled:
        unplaced = desired - placed
        waits = "1 waits for a node" if unplaced == 1 else f"{unplaced} wait for a node"
        message = f"{started} of {counted(desired, thing)} started; {waits}"
        return Health(scheduled, running=False, reason=Reason.WORKERS_PENDING, message=message)
    if started < desired:
        message = f"{started} of {desired} {thing}s have started{_late(waiting)}"
        return Health(scheduled, running=False, reason=Reason.WORKERS_STARTING, message=message)
    who = f"all {desired} {thing}s are running or have" if desired > 1 else "worker 0 is running or has"
    return Health(scheduled, running=True, reason=Reason.WORKERS_RUNNING, message=f"{who} succeeded")


def _blocked(pod: PodView, issue: PodIssue, *, others: int, scheduled: bool) -> Health:
    """Return the state of a group with a pod that cannot start, as can so many others."""
    more = f" (and {others} more)" if others else ""
    what = f"{issue.reason}: {issue.message}".removesuffix(": ")
    subject = f" ({issue.subject})" if issue.subject else ""
    message, reason = f"pod {pod.name}{more}: {what}{subject}", _reason(pod, issue)
    # A failed pull has a new message for each try.
    obstacle = issue.subject if reason is Reason.IMAGE_PULL_FAILED else f"{issue.message or issue.reason}{subject}"
    return Health(scheduled, running=False, reason=reason, message=message, obstacle=obstacle)


def _late(waiting: Sequence[PodView]) -> str:
    """Return what is known of the first pod that has not started, as the end of a sentence."""
    if not waiting:
        return ""
    late = waiting[0]
    # It may be young. Later, the issue says what its events say.
    runs = f"pod {late.name} runs init container {late.init_container}"
    return f"; {runs}" if late.init_container else f"; see the events of pod {late.name}"


def _all_present(pods: Sequence[PodView], members: Sequence[int]) -> bool:
    """Return whether each of these members has a pod."""
    return {p.index for p in pods}.issuperset(members)


def _reason(pod: PodView, issue: PodIssue) -> Reason:
    if not pod.scheduled:
        return Reason.UNSCHEDULABLE if issue.reason == UNSCHEDULABLE else Reason.WORKERS_PENDING
    return START_REASONS.get(issue.reason, Reason.CONTAINER_CREATE_FAILED)
