"""What ended an attempt: the first trouble, not those that followed from it."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from trainyard.api.reasons import Reason
from trainyard.domain.model import PodView
from trainyard.domain.worker import State, state

PEER_LOST = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "remote process exited",
    "DistBackendError",
    "RendezvousClosedError",
    "RendezvousConnectionError",
)
"""What gloo, NCCL and torchrun say in a rank that lost another one: the mark of a victim."""

SETTLE = timedelta(seconds=3)
"""How long a victim's own cause is waited for: the node of the real one may report a moment later."""

LONG_AGO = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Cause:
    """Why an attempt is over. `pod` is None where the pod is gone without a trace."""

    reason: Reason
    index: int
    pod: PodView | None
    time: datetime
    victim: bool = False
    """Whether its message says that it only lost a peer."""

    @property
    def charged(self) -> bool:
        """Whether it counts towards `maxRestarts`: an error of the program does, a disruption does not."""
        return self.reason is Reason.WORKER_FAILED


def find_cause(pods: Sequence[PodView], wished: int, *, launched: bool) -> Cause | None:
    """The cause that ended the attempt to which `pods` belong, or None where it goes on.

    `launched`: all its `wished` pods had been created, so one that is missing was taken away.
    """
    causes = [c for pod in pods if (c := _of(pod))]
    if launched:
        present = {p.index for p in pods}
        missing = (i for i in range(wished) if i not in present)
        causes += [Cause(Reason.WORKER_DISRUPTED, i, None, LONG_AGO) for i in missing]
    return min(causes, key=lambda c: (c.victim, c.time, c.charged, c.index), default=None)


def settling(cause: Cause, now: datetime) -> timedelta | None:
    """How much longer to wait before `cause` is believed to be the first, or None to believe it now."""
    left = cause.time + SETTLE - now
    return left if cause.victim and left > timedelta() else None


def describe(cause: Cause, attempt: int) -> str:
    """The cause as a sentence for people: worker, pod, node, what happened."""
    who = f"worker {cause.index}"
    if cause.pod is None:
        return f"{who} of attempt {attempt}: its pod is gone"
    where = f" on {cause.pod.node}" if cause.pod.node else ""
    who = f"{who} of attempt {attempt} (pod {cause.pod.name}{where})"
    if cause.reason is Reason.WORKER_FAILED and cause.pod.exit:
        end = cause.pod.exit
        return f"{who} failed with exit code {end.code} ({end.reason}): {_last_line(end.message)}".removesuffix(": ")
    why = cause.pod.taken_by or cause.pod.trouble
    verb = "was refused by its node" if cause.reason is Reason.ADMISSION_REJECTED else "was taken away"
    return f"{who} {verb}: {why.reason}: {why.message}".removesuffix(": ") if why else f"{who} {verb}"


def _of(pod: PodView) -> Cause | None:
    match state(pod):
        case State.FAILED if pod.exit:
            victim = any(mark in pod.exit.message for mark in PEER_LOST)
            return Cause(Reason.WORKER_FAILED, pod.index, pod, pod.exit.time, victim)
        case State.DISRUPTED if pod.taken_at:
            return Cause(Reason.WORKER_DISRUPTED, pod.index, pod, pod.taken_at)
        case State.DISRUPTED:
            return Cause(Reason.ADMISSION_REJECTED, pod.index, pod, LONG_AGO)
        case _:
            return None


def _last_line(message: str) -> str:
    """The line that says most: a traceback's last one."""
    return message.strip().rsplit("\n", 1)[-1][:512]
