"""End pods: pods without further use, and by force pods that only a lost node could terminate. Pure.

Until then they count against quotas, keep their names and their attached volumes, and are listed as Terminating. Their ranks may
still run after that; docs/design/0012-restart-scopes.md explains why this is harmless.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import assert_never

from trainyard.api.reasons import Reason
from trainyard.api.spec import CleanPods
from trainyard.api.status import ConditionType, TrainingJobStatus
from trainyard.domain.decisions import (
    Action,
    DeleteJob,
    DeletePod,
    DeletePodGroups,
    Outcome,
    PodChanges,
    RemovePod,
    StopPod,
    soonest,
)
from trainyard.domain.state.roles import rule_of
from trainyard.domain.state.snapshot import Snapshot
from trainyard.domain.state.worker_views import PodView

TRY_AGAIN = 60.0
"""Seconds until a pod that still exists is checked again."""
LOST_NODE_TIMEOUT = timedelta(seconds=30)
"""A pod that still exists this long after its grace period is on a lost node. Nothing waits for it."""
FAILED_WORKER_EXIT_TIMEOUT = timedelta(seconds=60)
"""How long the worker that failed the job may take to exit by itself. It never does where its node restarts its container."""


@dataclass(frozen=True, slots=True)
class Removals:
    """The removals by force that are due now, and the seconds until each next one."""

    actions: Sequence[RemovePod] = ()
    waits: Sequence[float] = ()


def removals(snapshot: Snapshot, now: datetime) -> Removals:
    """Return the removals of the pods that nothing needs any more."""
    after = snapshot.job.spec.recovery.force_delete_after_seconds
    actions: list[RemovePod] = []
    waits: list[float] = []
    for pod in snapshot.unused if after else ():
        if pod.deletion_time is None or pod.node_lost_at is None or pod.removed:
            continue
        left = (max(pod.deletion_time, pod.node_lost_at) - now) + timedelta(seconds=after)
        if left > timedelta(0):
            waits.append(left.total_seconds())
            continue
        waits.append(TRY_AGAIN)
        if _agent_connected(snapshot, pod):
            continue
        note = f"pod {pod.name} is deleted by force: node {pod.node} is unreachable, and the grace period ended at {pod.deletion_time:%H:%M:%S} UTC"
        actions.append(RemovePod(pod.name, pod.uid, note))
    return Removals(tuple(actions), waits)


def delete_pods(pods: Sequence[PodView], reason: Reason) -> list[Action]:
    """Return the deletions of those pods that exist and are not being deleted yet."""
    return [DeletePod(p.name, p.uid, reason) for p in pods if p.deletion_time is None and not p.gone]


def at_rest(snapshot: Snapshot, now: datetime) -> Outcome | PodChanges:
    """Return how the pods of a job end that is being deleted, has finished, or is suspended."""
    removed = removals(snapshot, now)
    if snapshot.job.deleting:
        return Outcome(actions=removed.actions, requeue_after=soonest(removed.waits))
    if snapshot.job.status.finished:
        return after_the_end(snapshot, removed, now)
    return pods_at_rest(snapshot, now)


def pods_at_rest(snapshot: Snapshot, now: datetime) -> PodChanges:
    """Return how the pods of a job end that is suspended, or waits in its queue, and its PodGroups."""
    removed = removals(snapshot, now)
    deleted = delete_pods(snapshot.pods, Reason.SUSPENDED if snapshot.job.status.suspended else Reason.EVICTED)
    lost = [(LOST_NODE_TIMEOUT - (now - p.deletion_time)).total_seconds() for p in snapshot.pods if p.deletion_time]
    queued = [wait for wait in lost if wait > 0] if snapshot.job.queue else []
    return _without_pod_group(snapshot, [*deleted, *removed.actions], [*removed.waits, *queued])


def is_lost(pod: PodView, now: datetime) -> bool:
    """Return whether the pod should have ended long ago: its node is lost."""
    return pod.deletion_time is not None and now - pod.deletion_time >= LOST_NODE_TIMEOUT


def after_the_end(snapshot: Snapshot, removed: Removals, now: datetime) -> Outcome | PodChanges:
    """Return what follows the end of a job: delete pods by `cleanPods`, and the job by `ttlSecondsAfterFinished`."""
    lifecycle, status = snapshot.job.spec.lifecycle, snapshot.job.status
    ttl, ended = lifecycle.ttl_seconds_after_finished, status.completion_time
    waits = [*removed.waits]
    if ttl is not None and ended is not None:
        wait = ttl - (now - ended).total_seconds()
        if wait <= 0:
            return Outcome(actions=[DeleteJob(Reason.TTL_EXPIRED)])
        waits.append(wait)
    left = (ended or now) + FAILED_WORKER_EXIT_TIMEOUT - now
    spared = _failed_pod(status) if left > timedelta() else ""
    waits += [left.total_seconds() for p in snapshot.pods if p.uid == spared and not p.has_stopped]
    policy, kept = lifecycle.clean_pods, _kept_seconds(snapshot, now)
    if kept is not None and kept > 0:
        waits.append(kept)
    elif kept is not None:
        policy = CleanPods.ALL
    ends = [_end_pod(p, snapshot, policy, spared) for p in snapshot.pods if p.deletion_time is None]
    return _without_pod_group(snapshot, [*(action for action in ends if action), *removed.actions], waits)


def _without_pod_group(snapshot: Snapshot, actions: Sequence[Action], waits: Sequence[float]) -> PodChanges:
    """Return these actions of a job at rest, with the deletion of its PodGroups if there may be some."""
    unused = snapshot.unused_pod_group
    if unused is None:
        return PodChanges(actions, waits)
    return PodChanges([*actions, DeletePodGroups(unused.scheduler)], waits, changes={"pod_group": None})


def _failed_pod(status: TrainingJobStatus) -> str:
    """Return the UID of the pod that failed the job; empty where none did.

    Its agent exits by itself once it receives that: people need its log.
    """
    last = status.last_failure
    return last.pod_uid if last and last.attempt == status.attempt else ""


def _kept_seconds(snapshot: Snapshot, now: datetime) -> float | None:
    """Return for how much longer the failed job keeps its pods; None without a limit, or where the job has not failed."""
    keep, status = snapshot.job.spec.lifecycle.keep_failed_pods_seconds, snapshot.job.status
    if keep is None or status.completion_time is None or not status.holds(ConditionType.FAILED):
        return None
    return keep - (now - status.completion_time).total_seconds()


def _end_pod(pod: PodView, snapshot: Snapshot, policy: CleanPods, spared: str) -> DeletePod | StopPod | None:
    """Return how the pod of a finished job ends, if it has to. A pod without a node has no log."""
    match policy:
        case CleanPods.ALL:
            return DeletePod(pod.name, pod.uid, Reason.JOB_FINISHED)
        case CleanPods.RUNNING:
            if pod.ended or (pod.uid == spared and pod.exit is None):
                return None
            if snapshot.job.status.holds(ConditionType.FAILED) and pod in snapshot.current and pod.scheduled:
                return None if pod.stop_requested else StopPod(pod.name, pod.uid, Reason.JOB_FINISHED)
            return DeletePod(pod.name, pod.uid, Reason.JOB_FINISHED)
        case CleanPods.NONE:
            # A server would run for ever. Its node stops it, and the pod keeps its log.
            endless = not rule_of(snapshot.job.spec, pod.index).ends and not pod.ended
            return StopPod(pod.name, pod.uid, Reason.JOB_FINISHED) if endless and not pod.stop_requested else None
        case _:
            assert_never(policy)


def _agent_connected(snapshot: Snapshot, pod: PodView) -> bool:
    """Return whether the pod's agent is connected: then the worker runs, and only the control plane does not reach its node."""
    agent = snapshot.agents.get(pod.uid)
    return agent is not None and agent.connected
