"""An elastic group follows what the cluster has room for: it goes on without workers that find no place, and grows when they do. Pure.

Workers are numbered from 0 without gaps, in a smaller group too: where worker 1 lacks a place, the last one gives up its own.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta

from trainyard.api.reasons import Reason
from trainyard.api.status import ConditionType as C
from trainyard.domain.recovery.restart_scope import can_join
from trainyard.domain.recovery.stored_times import startup_began
from trainyard.domain.scaling.group_size import at_most
from trainyard.domain.state.snapshot import UNSCHEDULABLE, PodView, Snapshot


def remaining(snapshot: Snapshot, now: datetime) -> int | None:
    """The size with which the group is to go on now, because some of its workers have waited for a place for long enough."""
    if not lacks(snapshot, now):
        return None
    workers = snapshot.size.desired
    size = _fit(snapshot, snapshot.joining, workers)
    if size is None or not can_join(snapshot):
        # Where the others could not join it again, it would start anew for them at once.
        return None
    return size if size < workers or snapshot.joining else None


def lacks(snapshot: Snapshot, now: datetime) -> bool:
    """Whether the group has waited for places of its own for long enough."""
    left = _left(snapshot, now)
    return left is not None and left <= timedelta()


def is_placed(pod: PodView) -> bool:
    """Whether it has a place, or needs none any more."""
    return pod.scheduled or pod.ended


def is_complete(snapshot: Snapshot) -> bool:
    """Whether all workers of the group have one."""
    return sum(map(is_placed, snapshot.current)) >= snapshot.size.current


def why(snapshot: Snapshot) -> str:
    """What the workers that lack a place wait for, in the words of those who refuse it."""
    waits = [pod for pod in snapshot.current if pod.trouble and not pod.scheduled]
    if waits and waits[0].trouble:
        return f"pod {waits[0].name}: {waits[0].trouble.message or waits[0].trouble.reason}"
    told = snapshot.job.status.condition(C.RUNNING)
    return told.message if told else "their pods are not there"


def aim(snapshot: Snapshot, now: datetime) -> int:
    """The size to which those that join are to bring the group: as wished for, or as many as have found a place."""
    allowed, joining = snapshot.size.allowed, snapshot.job.status.internal.joining
    elastic = snapshot.job.spec.elastic
    if elastic is None or joining is None or joining.current_size != snapshot.size.current:
        return allowed
    # Where fewer were asked for, the rest has its turn when the group has grown.
    fewer = at_most(snapshot.job.spec, min(joining.target_size, allowed)) if joining.requested_size == allowed else None
    asked = fewer if fewer and fewer > joining.current_size else allowed
    if joining.ready_since is None or patience(snapshot, now) > timedelta() or not _is_known(snapshot):
        return asked
    # Who lacks a place gets another's. Who has one and does not start there gets none: the group ends below it.
    stuck = [pod.index for pod in snapshot.joining if pod.scheduled and pod.trouble and not pod.running]
    able = [pod for pod in snapshot.joining if pod.index not in stuck]
    return _fit(snapshot, able, min([asked, *stuck]), joining.current_size) or asked


def patience(snapshot: Snapshot, now: datetime) -> timedelta:
    """How much longer those that join and are ready wait for those that find no place or cannot start."""
    elastic, joining = snapshot.job.spec.elastic, snapshot.job.status.internal.joining
    if elastic is None or joining is None or joining.ready_since is None:
        return timedelta()
    return joining.ready_since + timedelta(seconds=elastic.shrink_after_seconds) - now


def pause(snapshot: Snapshot, now: datetime) -> timedelta:
    """How much longer an elastic group keeps its size, since it got it a moment ago, or those that were to join it have failed."""
    elastic, since = snapshot.job.spec.elastic, snapshot.job.status.internal.scale_up_paused_since
    if elastic is None or since is None:
        return timedelta()
    return since + timedelta(seconds=elastic.grow_after_seconds) - now


def deadlines(snapshot: Snapshot, now: datetime) -> Sequence[float]:
    """Seconds until there is another look to take."""
    left = [_left(snapshot, now) or timedelta()]
    if snapshot.size.scale_up_pending:
        left += [patience(snapshot, now), pause(snapshot, now)]
    return [wait.total_seconds() for wait in left if wait > timedelta()]


def _left(snapshot: Snapshot, now: datetime) -> timedelta | None:
    """How much longer workers that lack a place are waited for; None where none does, or the group cannot do without."""
    spec, begun = snapshot.job.spec, startup_began(snapshot.job.status)
    lacking = _lacking(snapshot)
    if spec.elastic is None or begun is None or not lacking:
        return None
    return begun + timedelta(seconds=spec.elastic.shrink_after_seconds) - now


def _fit(snapshot: Snapshot, joining: Sequence[PodView], most: int, above: int = 0) -> int | None:
    """The largest size that the group could have in the places of its own workers and of those that are to join; None where there is none."""
    elastic = snapshot.job.spec.elastic
    safe = (elastic.on_demand_replicas if elastic else None) or 0
    placed = [pod.index for pod in (*snapshot.current, *joining) if is_placed(pod)]
    on_demand = sum(index < safe for index in placed)
    # What the others have may be spot nodes, where the first ones do not go. They are given up for these only where there is no other way.
    for room in (on_demand if on_demand < safe else len(placed), len(placed)):
        size = at_most(snapshot.job.spec, min(room, most))
        if size is not None and size > above:
            return size
    return None


def _is_known(snapshot: Snapshot) -> bool:
    """Whether all of the group have a place, and it is known of those that are to join whether there is one."""
    return is_complete(snapshot) and all(is_placed(pod) or _looked_at(pod) for pod in snapshot.joining)


def _lacking(snapshot: Snapshot) -> list[int]:
    """The workers of the group for which there is no room; none while the scheduler has yet to look at one of them."""
    status, there = snapshot.job.status, {pod.index: pod for pod in snapshot.current}
    said = status.condition(C.RUNNING)
    refused = said is not None and said.status == "False" and said.reason == Reason.QUOTA_EXCEEDED
    missing = [i for i in range(snapshot.size.desired) if i not in there]
    unplaced = [pod for pod in there.values() if not is_placed(pod)]
    if (missing and not refused) or not all(map(_looked_at, unplaced)):
        return []
    return sorted([*missing, *(pod.index for pod in unplaced)])


def _looked_at(pod: PodView) -> bool:
    return pod.trouble is not None and pod.trouble.reason == UNSCHEDULABLE
