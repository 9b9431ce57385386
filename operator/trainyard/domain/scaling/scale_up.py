"""Workers that are to join a group which trains: their pods are made, started and have imported before the others stop for them. Pure."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from trainyard.api.internal_status import Joining
from trainyard.api.reasons import Reason
from trainyard.api.status import StatusChanges
from trainyard.domain.actions import Action, CreateWorker, Event
from trainyard.domain.recovery.restart_scope import can_join
from trainyard.domain.scaling.capacity import aim, is_complete, is_placed, lacks, patience, pause
from trainyard.domain.scaling.group_size import allowed_size, keep, outgrown
from trainyard.domain.state.replicas import GroupSize
from trainyard.domain.state.snapshot import Doing, PodView, Snapshot
from trainyard.domain.state.worker_state import State, state
from trainyard.domain.wording import counted


def decide_size(snapshot: Snapshot, now: datetime) -> GroupSize:
    """Return the group's size for this reconcile: what is allowed, once the workers that join are ready."""
    return gate_on_readiness(replace(snapshot, decided_size=allowed_size(snapshot)), now)


def gate_on_readiness(snapshot: Snapshot, now: datetime) -> GroupSize:
    """Return the size of a group that keeps its workers until the joining ones are ready, or one of them has failed.

    Where new workers could not join the pods that exist, nothing is gated: all pods are created again.
    """
    status, decided = snapshot.job.status, snapshot.size
    current, allowed = decided.current, decided.allowed
    begun = status.internal.launched_attempt > 0 or status.internal.joining is not None
    # With growAfterSeconds, several wishes become one change.
    pauses = pause(snapshot, now) > timedelta()
    if allowed <= current or not begun or not (can_join(snapshot) or pauses):
        return decided
    # Who is on the way goes on. But none takes a place that the group itself has waited for in vain.
    asked = (
        status.internal.joining is not None
        and status.internal.joining.current_size == current < status.internal.joining.target_size
    )
    kept = keep(decided, current)
    stays = (pauses and not asked) or lacks(replace(snapshot, decided_size=kept), now)
    target = current if stays else aim(snapshot, now)
    if target > current and _may_grow(snapshot) and _is_settled(snapshot, range(current, target)):
        return keep(decided, target)
    return replace(kept, target=target, limited_because=decided.limited_because or outgrown(snapshot))


def changes(snapshot: Snapshot, now: datetime) -> StatusChanges:
    """What else the status is to say of those that join; nothing where it does."""
    before, status, size = snapshot.job.status.internal.joining, snapshot.job.status, snapshot.size
    if not size.scale_up_pending:
        # Nobody is to join any more: that is said until they are gone.
        left = before is not None and any(pod.index >= before.current_size for pod in snapshot.pods)
        after = (
            Joining(current_size=before.current_size, target_size=before.current_size, attempt=before.attempt)
            if before and left
            else None
        )
        return {} if after == before else {"joining": after}
    if snapshot.job.spec.elastic and any(map(_is_lost, snapshot.joining)):
        # Tried again after a while, with all others: the group does not stop for those that did not come to it.
        return {
            "joining": Joining(current_size=size.current, target_size=size.current, attempt=status.attempt),
            "scale_up_paused_since": now,
        }
    narrower = snapshot.job.spec.elastic is not None and size.current < size.target < size.allowed
    of, since = size.allowed if narrower else None, _ready_since(snapshot, now)
    if before is not None and (before.current_size, before.target_size) == (size.current, size.target):
        after = before.evolve(ready_since=since, requested_size=of)
        return {} if after == before else {"joining": after}
    same = before is not None and before.current_size == size.current
    attempt = before.attempt if before and same else status.attempt
    # Whose turn comes later is not waited for; but another wish has those that are ready wait no longer.
    kept = since if same and not narrower else None
    return {
        "joining": Joining(
            current_size=size.current,
            target_size=size.target,
            attempt=attempt,
            ready_since=kept,
            requested_size=of,
        )
    }


def told(snapshot: Snapshot, changed: StatusChanges) -> Sequence[Event]:
    """The event with which it begins, or ends before its time."""
    begun, before = changed.get("joining"), snapshot.job.status.internal.joining
    if "scale_up_paused_since" in changed:
        lost = next(filter(_is_lost, snapshot.joining))
        note = f"worker {lost.index} (pod {lost.name}) ended before it could join; the group trains on without it"
        return [Event("Warning", Reason.WORKERS_JOINING, note)]
    more = begun.target_size - begun.current_size if begun else 0
    asked = (
        before is not None
        and begun is not None
        and (before.current_size, before.target_size) == (begun.current_size, begun.target_size)
    )
    if begun is None or not more or asked:
        return []
    those = "one that joins is" if more == 1 else f"{more} that join are"
    why = "the group may grow" if snapshot.job.spec.elastic else "replicas was raised"
    note = f"{why} to {begun.target_size}; the group of {begun.current_size} trains on until {those} ready"
    return [Event("Normal", Reason.WORKERS_JOINING, note)]


def newcomers(snapshot: Snapshot) -> Sequence[Action]:
    """The pods that are to be made for those that join."""
    asked = snapshot.job.status.internal.joining
    if asked is None or not snapshot.size.scale_up_pending:
        return []
    if not _may_grow(snapshot):
        # They would take the place for which one of the group waits.
        return []
    there = {pod.index for pod in snapshot.joining}
    return [
        CreateWorker(i, asked.attempt, asked.target_size)
        for i in range(asked.current_size, asked.target_size)
        if i not in there
    ]


def story(snapshot: Snapshot, now: datetime) -> str:
    """How far they are, for people."""
    current, target, wish = snapshot.size.current, snapshot.size.target, snapshot.size.allowed
    more = counted(wish - current, "worker")
    if target == current and pause(snapshot, now) <= timedelta():
        return f"{more} more {'is' if wish - target == 1 else 'are'} asked for when the group has places of its own"
    if target == current:
        return f"{more} more {'is' if wish - target == 1 else 'are'} asked for at {now + pause(snapshot, now):%H:%M:%S} UTC (elastic.growAfterSeconds)"
    ready, joins = sum(_is_ready(snapshot, pod) for pod in snapshot.joining), target - current
    troubled = [pod for pod in sorted(snapshot.joining, key=lambda pod: pod.index) if pod.trouble]
    why = next(
        (f": pod {pod.name}: {pod.trouble.message or pod.trouble.reason}" for pod in troubled if pod.trouble), ""
    )
    later = f" ({wish - target} more have their turn after that)" if target < wish else ""
    limit = patience(snapshot, now)
    until = f"; who finds no place or cannot start is waited for until {now + limit:%H:%M:%S} UTC (elastic.shrinkAfterSeconds)"
    those = f"{counted(joins, 'worker')} that {'joins' if joins == 1 else 'join'} {'is' if 1 in {ready, joins} else 'are'} ready"
    waits = until if why and limit > timedelta() else ""
    return f"{ready} of {those}{later}{why}; until all are, the others train on{waits}"


def _may_grow(snapshot: Snapshot) -> bool:
    """Whether all workers that there are have a place, of a group that could do with fewer."""
    return snapshot.job.spec.elastic is None or is_complete(snapshot)


def _ready_since(snapshot: Snapshot, now: datetime) -> datetime | None:
    """Since when some of those that join are ready, and wait for the others; None where none is, or nobody counts."""
    before = snapshot.job.status.internal.joining
    if snapshot.job.spec.elastic is None or not any(map(is_placed, snapshot.joining)):
        return None
    if before is not None and before.ready_since is not None:
        # An operator that has just begun has yet to hear of them.
        return before.ready_since
    return now if any(_is_ready(snapshot, pod) for pod in snapshot.joining) else None


def _is_settled(snapshot: Snapshot, wished: range) -> bool:
    there = {pod.index: pod for pod in snapshot.joining}
    if any(map(_is_lost, there.values())):
        return snapshot.job.spec.elastic is None
    return all(index in there and _is_ready(snapshot, there[index]) for index in wished)


def _is_lost(pod: PodView) -> bool:
    """Whether it will not join any more: another container may run on where the main one has failed. One that is deleted is made anew."""
    return pod.deletion_time is None and (pod.ended or state(pod) is State.FAILED)


def _is_ready(snapshot: Snapshot, pod: PodView) -> bool:
    agent = snapshot.agents.get(pod.uid)
    waits = agent is not None and agent.connected and agent.doing is Doing.WAITING and agent.prepared
    # Of a container its agent may tell sooner than its node.
    return waits and pod.running and not pod.taken_by
