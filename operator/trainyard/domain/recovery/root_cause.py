"""Find the root cause that ended an attempt: the first issue, not its consequences. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from trainyard.api.reasons import Reason
from trainyard.api.recovery import HANG_CODE, SIGBUS_CODE
from trainyard.domain.progress.hang import Culprit
from trainyard.domain.state.roles import member
from trainyard.domain.state.termination import Exit
from trainyard.domain.state.worker_views import PodView, State
from trainyard.domain.wording import raised_at

ROOT_CAUSE_WAIT = timedelta(seconds=3)
"""How long to wait for the root cause after a victim has exited: its node may report a moment later."""

UNKNOWN_TIME = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Cause:
    """A cause for which an attempt is over. `pod` is None where the pod does not exist any more."""

    reason: Reason
    index: int
    pod: PodView | None
    time: datetime
    victim: bool = False
    """Whether its message, or its exit code, reports a lost peer or a request to stop."""
    counted_by_rule: bool | None = None
    """Whether it is counted, where a rule decides; None: an error of the program is counted, a disruption is not."""
    reported_step: int | None = None
    """The last step that its worker has reported, used where its exit names none."""
    culprit: Culprit | None = None
    """Of a hang: the rank on which all others were blocked, where another worker's agent was the first to report it."""

    @property
    def failed(self) -> bool:
        """Whether it is an error of the program, not a disruption."""
        return self.reason is Reason.WORKER_FAILED

    @property
    def exit(self) -> Exit | None:
        """The exit of its worker, which a disruption may have caused; None where there is none."""
        return self.pod.exit if self.pod else None

    @property
    def failed_exit(self) -> Exit | None:
        """The exit that is an error of the program; None where a disruption is the cause."""
        return self.exit if self.failed else None

    @property
    def step(self) -> int | None:
        """The last step that the rank completed, where it is known."""
        own = self.exit.step if self.exit else None
        return self.reported_step if own is None else own

    @property
    def hung(self) -> bool:
        """Whether a rank was hung."""
        return self.failed_exit is not None and self.failed_exit.code == HANG_CODE

    @property
    def out_of_memory(self) -> bool:
        """Whether memory ran out, or shared memory."""
        end = self.failed_exit
        return end is not None and (end.reason == "OOMKilled" or end.code == SIGBUS_CODE)

    @property
    def counted(self) -> bool:
        """Whether it counts towards `maxRestarts`."""
        return self.failed if self.counted_by_rule is None else self.counted_by_rule


def find_cause(pods: Sequence[PodView], created: Iterable[int]) -> Cause | None:
    """Return the cause that ended the attempt of `pods`; None where the attempt continues.

    `created`: the workers whose pods have existed; a missing one was deleted.
    """
    causes = [c for pod in pods if (c := _cause_of(pod))]
    present = {p.index for p in pods}
    causes += [Cause(Reason.WORKER_DISRUPTED, i, None, UNKNOWN_TIME) for i in created if i not in present]
    return min(causes, key=lambda c: (c.victim, c.time, c.counted, c.index), default=None)


def root_cause_wait_left(cause: Cause, now: datetime) -> timedelta | None:
    """Return how much longer to wait until `cause` counts as the root cause; None: it does now."""
    # The time is by the node's clock. A clock that is minutes ahead must not delay the restart for minutes.
    left = ROOT_CAUSE_WAIT - abs(now - cause.time)
    return left if cause.victim and left > timedelta() else None


def describe(cause: Cause, attempt: int) -> str:
    """Return the cause as a sentence for people: worker, pod, node, what happened."""
    subject, pod = f"{member(cause.index)} of attempt {attempt}", cause.pod
    if pod is None:
        return f"{subject}: its pod is gone"
    where = f" on {pod.node}" if pod.node else ""
    subject = f"{subject} (pod {pod.name}{where})"
    if end := cause.failed_exit:
        if cause.culprit:
            return f"{describe_culprit(cause.culprit)}; {subject} detected it first: {end.summary}"
        inside = f" in init container {end.init_container}" if end.init_container else ""
        how = f"failed with exit code {end.code} ({end.reason}){inside}"
        text = f"{subject} {how}: {end.summary}".removesuffix(": ")
        return f"{text} (at {where})" if (where := _location(end)) else text
    why = pod.disruption or pod.issue
    verb = "was rejected by its node" if cause.reason is Reason.ADMISSION_REJECTED else "was disrupted"
    return f"{subject} {verb}: {why.reason}: {why.message}".removesuffix(": ") if why else f"{subject} {verb}"


def _location(end: Exit) -> str:
    return raised_at(end.message) if end.kind is None else end.location


def describe_culprit(culprit: Culprit) -> str:
    """Return which rank blocks the group, and where it is."""
    where = f" on {culprit.pod.node}" if culprit.pod.node else ""
    blocked = {
        "stopped": "is stopped by a signal",
        "uninterruptible": "is blocked in the kernel: a disk, a file server, or the driver of a device",
    }
    stands = blocked.get(culprit.blocked, f"is hung at {culprit.frame}")
    return f"rank {culprit.rank} (pod {culprit.pod.name}{where}) {stands}; all other ranks are blocked on it"


def _cause_of(pod: PodView) -> Cause | None:
    match pod.state:
        case State.FAILED if pod.exit:
            # A worker that saved its work was requested to stop. The cause of that request is reported a moment later.
            return Cause(Reason.WORKER_FAILED, pod.index, pod, pod.exit.time, pod.exit.is_consequence)
        case State.DISRUPTED if pod.disruption:
            return Cause(Reason.WORKER_DISRUPTED, pod.index, pod, pod.disrupted_at or UNKNOWN_TIME)
        case State.DISRUPTED:
            return Cause(Reason.ADMISSION_REJECTED, pod.index, pod, UNKNOWN_TIME)
        case _:
            return None
