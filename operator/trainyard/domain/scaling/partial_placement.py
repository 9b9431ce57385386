"""Give back the nodes of a group that has only a part of them: two such groups would wait for each other's. Pure."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from zlib import crc32

from trainyard.api.base import increment
from trainyard.api.internal_status import Releases
from trainyard.api.reasons import Reason
from trainyard.api.roles import is_worker
from trainyard.api.scheduling import PARTIAL_TIMEOUT_SECONDS
from trainyard.api.spec import Framework, TrainingJobSpec
from trainyard.domain.decisions import Restart
from trainyard.domain.recovery.stored_times import longest_release_delay
from trainyard.domain.scaling.group_size import largest_scheduled_size, without_capacity
from trainyard.domain.scaling.resize import unschedulable_message
from trainyard.domain.state.roles import rules
from trainyard.domain.state.snapshot import JobView, Snapshot
from trainyard.domain.state.worker_views import PodView

SCOPE = "deleting all pods, and creating them again"


def release_nodes(snapshot: Snapshot, now: datetime) -> Restart | None:
    """Return the decision to give all nodes of the group back; None where it has all or none, or the timeout is not over."""
    left = _timeout_left(snapshot, now)
    if left is None or left > timedelta():
        return None
    job, internal = snapshot.job, snapshot.job.status.internal
    holding, members = _holding(snapshot), job.members(snapshot.size.desired)
    thing = "workers" if all(map(is_worker, members)) else "members"
    seconds, before = _timeout_seconds(job.spec), internal.releases
    count = increment(before.count) if before else 1
    since = before.since if before else job.status.starting_since or now
    delay = delay_seconds(job, count)
    return Restart(
        Reason.PARTIALLY_SCHEDULED,
        f"{len(holding)} of {len(members)} {thing} held a node, and for {seconds} seconds"
        f" (scheduling.partialTimeoutSeconds) there was none for the others ({unschedulable_message(snapshot)})",
        scope=SCOPE,
        delay_seconds=delay,
        changes={
            "releases": Releases(count=count, since=since),
            "backoff": internal.backoff.evolve(not_before=now + timedelta(seconds=delay)),
        },
    )


def waits(snapshot: Snapshot, now: datetime) -> Sequence[float]:
    """Return the seconds until the group gives its nodes back; nothing where it does not."""
    left = _timeout_left(snapshot, now)
    return [left.total_seconds()] if left is not None and left > timedelta() else []


def delay_seconds(job: JobView, count: int) -> int:
    """Return the seconds after which a job that gives its nodes back for the count-th time tries again.

    From a third of the longest delay up to it, by the job's UID: two jobs that give their nodes back together try again apart.
    """
    longest = longest_release_delay(count)
    return int(longest * (1 + 2 * crc32(f"{job.uid}/{count}".encode()) / 2**32) / 3)


def _timeout_left(snapshot: Snapshot, now: datetime) -> timedelta | None:
    """Return how much longer the group may hold a part of its nodes; None where it may hold them without a limit."""
    seconds, start = _timeout_seconds(snapshot.job.spec), snapshot.job.status.starting_since
    if not seconds or start is None or not _holding(snapshot):
        return None
    # Its own pods that are still terminating may be what fills the quota.
    others = [] if snapshot.missing and snapshot.old else without_capacity(snapshot)
    if not others or (all(map(is_worker, others)) and _can_shrink(snapshot)):
        return None
    since = max([start, *(pod.scheduled_at for pod in _holding(snapshot) if pod.scheduled_at)])
    return since + timedelta(seconds=seconds) - now


def _timeout_seconds(spec: TrainingJobSpec) -> int:
    """Return for how many seconds the group may hold a part of its nodes; 0: without a limit."""
    if (seconds := spec.scheduling.partial_timeout_seconds) is not None:
        return seconds
    trains_alone = spec.framework is Framework.NONE or rules(spec).worker.alone
    return 0 if trains_alone else PARTIAL_TIMEOUT_SECONDS


def _holding(snapshot: Snapshot) -> list[PodView]:
    """Return the pods of the group that hold a node."""
    return [pod for pod in snapshot.current if pod.scheduled and not pod.ended]


def _can_shrink(snapshot: Snapshot) -> bool:
    """Return whether the group may go on with the nodes that it has, once `elastic.shrinkAfterSeconds` is over."""
    return snapshot.joinable and largest_scheduled_size(snapshot, snapshot.joining, snapshot.size.desired) is not None
