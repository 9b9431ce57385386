"""Members whose failure stops no other: their containers restart in their pods, and lost pods are created again in the same attempt. Pure.

The node restarts the container of such a member (`restartPolicy: OnFailure`), with its growing delay, also while the operator is away.
Only a pod that is lost needs the operator: it stores that first, and then creates the pod under a name of its own.
"""

from collections.abc import Sequence

from trainyard.api.base import increment
from trainyard.api.internal_status import MAX_RECREATED, MAX_RECREATIONS, Recreated
from trainyard.api.reasons import Reason
from trainyard.api.status import TrainingJobStatus
from trainyard.domain.decisions import Event, Fail, Outcome
from trainyard.domain.state.roles import member
from trainyard.domain.state.snapshot import Snapshot
from trainyard.domain.state.worker_views import PodView
from trainyard.domain.wording import counted


def restore_lone_members(snapshot: Snapshot) -> Outcome | Fail | None:
    """Return what follows from the ends of members that go on alone; None where all is well with them."""
    pods = {pod.index: pod for pod in snapshot.current if snapshot.job.is_lone(pod.index)}
    limit = snapshot.job.spec.recovery.max_restarts
    for index, pod in pods.items():
        if pod.container_restarts > limit:
            times = counted(pod.container_restarts, "time")
            note = f"{member(index)} (pod {pod.name}) exited with an error {times}, and recovery.maxRestarts allows {limit}"
            return Fail(Reason.RESTARTS_EXHAUSTED, f"{note}. See its log: kubectl logs --previous {pod.name}")
    entries = {each.member: each for each in _entries(snapshot.job.status)}
    awaited = {index for index, each in entries.items() if not each.launched}
    existed = [index for index in snapshot.created if snapshot.job.is_lone(index)]
    lost = [index for index in existed if (_is_lost(pods[index]) if index in pods else index not in awaited)]
    if lost:
        return _recreate(snapshot, lost, pods)
    if seen := awaited & pods.keys():
        now = [each.evolve(launched=True) if each.member in seen else each for each in entries.values()]
        return Outcome({"recreated": now})
    return None


def _entries(status: TrainingJobStatus) -> Sequence[Recreated]:
    """Return the stored entries, without those of pods that later attempts have replaced."""
    return [each for each in status.internal.recreated if status.recreated(each.member)]


def _is_lost(pod: PodView) -> bool:
    return pod.disruption is not None or pod.deletion_time is not None or pod.phase == "Failed"


def _recreate(snapshot: Snapshot, lost: list[int], pods: dict[int, PodView]) -> Outcome | Fail:
    """Return the transition by which these members get new pods."""
    status = snapshot.job.status
    limit, disruptions = snapshot.job.spec.recovery.max_disruptions, status.restarts.disruptions
    first = lost[0]
    why = _reason(pods.get(first))
    more = f" (and {len(lost) - 1} more)" if len(lost) > 1 else ""
    what = f"{member(first)} of attempt {status.attempt}{more} was lost: {why}"
    if limit is not None and disruptions >= limit:
        return Fail(
            Reason.DISRUPTIONS_EXHAUSTED,
            f"{what}; {counted(disruptions + 1, 'disruption')}, and recovery.maxDisruptions allows {limit}",
        )
    stored = {each.member: each for each in _entries(status)}
    for index in lost:
        count = min(status.recreated(index) + 1, MAX_RECREATIONS)
        stored[index] = Recreated(member=index, attempt=status.created_in_attempt(index), count=count)
    restarts = status.restarts.evolve(disruptions=increment(disruptions))
    note = f"{what}; a new pod joins the group, which goes on"
    return Outcome(
        {
            "recreated": [stored[index] for index in sorted(stored)][:MAX_RECREATED],
            "restarts": restarts,
            "restart_count": restarts.failures + restarts.disruptions,
        },
        events=[Event("Warning", Reason.WORKER_DISRUPTED, note)],
    )


def _reason(pod: PodView | None) -> str:
    if pod is None:
        return "its pod is gone"
    where = f" on {pod.node}" if pod.node else ""
    why = pod.disruption or pod.issue
    what = f"{why.reason}: {why.message}".removesuffix(": ") if why else "it failed"
    return f"pod {pod.name}{where}: {what}"
