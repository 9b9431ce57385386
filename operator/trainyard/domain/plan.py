"""Plan the reconcile of a job: gather the facts, then ordered checks, of which the first that applies decides. Pure.

Level-triggered: the stored job and its observed pods decide, not their history. Planning twice from the same snapshot
gives the same plan, and planning after the plan was executed gives no actions.
"""

from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

from trainyard.api.constants import CONTROLLER_NAME
from trainyard.api.reasons import Reason
from trainyard.api.spec import Success
from trainyard.domain.actions import Outcome, Plan, PodChanges, soonest, whole_seconds
from trainyard.domain.decisions import Complete, Decision, Restart, Resume, Suspend
from trainyard.domain.progress import goodput, stragglers
from trainyard.domain.progress.group_progress import last_step_of, progress
from trainyard.domain.recovery import agent_reports, failure_policy
from trainyard.domain.recovery.adoption import lost_attempt
from trainyard.domain.recovery.agent_injection import without_agent
from trainyard.domain.recovery.outdated_group import replace_outdated_group
from trainyard.domain.recovery.restart_scope import can_join
from trainyard.domain.recovery.root_cause import Cause, find_cause, root_cause_wait_left
from trainyard.domain.recovery.start_errors import never_starts
from trainyard.domain.recovery.stored_times import clamp_future_timestamps
from trainyard.domain.recovery.suspect_nodes import released_nodes
from trainyard.domain.scaling import resize
from trainyard.domain.scaling.group_size import decide_size
from trainyard.domain.state.snapshot import JobView, Snapshot
from trainyard.domain.state.stored_success import remember_success
from trainyard.domain.state.worker_state import State, all_present, state
from trainyard.domain.status import transitions
from trainyard.domain.status.rank_warnings import with_rank_warnings
from trainyard.domain.status.report import report
from trainyard.domain.status.slow_init import with_slow_init
from trainyard.domain.stop import pod_removal
from trainyard.domain.stop.coordinated_stop import plan_coordinated_stop
from trainyard.domain.stop.deadlines import Deadlines, check_deadlines
from trainyard.domain.stop.pod_removal import Removals
from trainyard.domain.worker_pods import reconcile_pods

if TYPE_CHECKING:
    from trainyard.api.status import StatusChanges

Step = Outcome | PodChanges | Decision
"""What a check returns: an outcome as it is, changes of pods to be reported, or a decision on the attempt or the job."""


def plan(snapshot: Snapshot, now: datetime) -> Plan:
    """Return what to do for a job now."""
    # In whole seconds, as times are stored: a decision equals what is read later.
    now = now.replace(microsecond=0)
    status = snapshot.job.status
    if not ours(snapshot.job):
        return Plan(status)
    removed = pod_removal.removals(snapshot, now)
    if snapshot.job.deleting:
        return Plan(status, removed.actions, requeue_after=soonest(removed.waits))
    if status.finished:
        step: Step | None = pod_removal.after_the_end(snapshot, removed, now)
    else:
        snapshot = _gather(snapshot, now)
        step = _interruption(snapshot, removed, now)
    if step is None:
        snapshot = agent_reports.merge_agent_reports(snapshot, now)
        if status.internal.active_since is None:
            # The first reconcile of a job needs no transition of its own: its pods have attempt 1, as has a status never written.
            begun = snapshot.job.status.evolve(**transitions.start(snapshot.job, now))
            snapshot = replace(snapshot, job=replace(snapshot.job, status=begun))
        deadlines = check_deadlines(snapshot, now)
        step = _decide(snapshot, deadlines, now) or reconcile_pods(snapshot, removed, deadlines.waits, now)
    match step:
        case Outcome():
            outcome = step
        case PodChanges():
            outcome = report(snapshot, step, now)
        case _:
            outcome = transitions.apply(step, snapshot, now)
    if not status.finished:
        outcome = with_rank_warnings(outcome, snapshot)
    return transitions.store(snapshot.job, outcome, now)


def ours(job: JobView) -> bool:
    """Return whether this operator manages the job."""
    return job.spec.managed_by in {None, CONTROLLER_NAME}


def _gather(snapshot: Snapshot, now: datetime) -> Snapshot:
    """Return the snapshot with what all later steps rely on: plausible times, progress, stored successes, the group's size."""
    status = snapshot.job.status
    changes = clamp_future_timestamps(status, now)
    if snapshot.reports:
        seen = progress(snapshot, now)
        active = goodput.active_time(status, goodput.step_reported_at(snapshot, now))
        reported: StatusChanges = {
            "progress": seen,
            "goodput": goodput.reported(snapshot, seen, active),
            "stragglers": stragglers.stragglers(snapshot, now),
        }
        changes = {**changes, **reported}
    if (auto := snapshot.job.auto_processes) and auto.counted != status.internal.counted_processes:
        changes = {**changes, "counted_processes": auto.counted}
    if changes:
        snapshot = replace(snapshot, job=replace(snapshot.job, status=status.evolve(**changes)))
    snapshot = with_slow_init(remember_success(snapshot), now)
    snapshot = replace(snapshot, joinable=can_join(snapshot))
    return replace(snapshot, decided_size=decide_size(snapshot, now))


def _interruption(snapshot: Snapshot, removed: Removals, now: datetime) -> Step | None:
    """Return what a job does before its workers' failures count: adopt an attempt, succeed, stop in coordination, or be suspended."""
    job, suspended = snapshot.job, snapshot.job.status.suspended
    if adopted := lost_attempt(snapshot):
        return adopted
    # In the size for which the group was created: `replicas` may have changed since.
    succeeded = [p for p in snapshot.current if state(p) is State.SUCCEEDED]
    needed = 1 if job.spec.lifecycle.success is Success.WORKER_0 else snapshot.size.current
    if not suspended and not snapshot.outdated and all_present(succeeded, needed):
        return Complete()
    deadlines = check_deadlines(snapshot, now)
    if deadlines.active is None and (held := plan_coordinated_stop(snapshot, now)):
        if held.requeue_after is None:
            return held
        return replace(held, requeue_after=soonest([held.requeue_after, *deadlines.waits]))
    if not job.spec.lifecycle.suspend:
        return Resume() if suspended else None
    if not suspended:
        return Suspend()
    deleted = pod_removal.delete_pods(snapshot.pods, Reason.SUSPENDED)
    return PodChanges([*deleted, *removed.actions], removed.waits)


def _decide(snapshot: Snapshot, deadlines: Deadlines, now: datetime) -> Step | None:
    """Return what ends the current attempt, if anything does. The order decides between several."""
    status = snapshot.job.status
    if deadlines.active:
        return deadlines.active
    if outdated := replace_outdated_group(snapshot):
        return outdated
    if was := snapshot.size.resized_from:
        return resize.resize(snapshot, was, now)
    if status.awaiting_rendezvous and snapshot.coordinator_up_since is None:
        return Restart(Reason.AGENT_DISABLED, "the rendezvous cannot open: the coordinator is disabled")
    if cause := find_cause(snapshot.current, snapshot.created):
        # Wait for missing agents first: a lost-peer error may be caused by a silent or finished worker.
        wait = (
            root_cause_wait_left(cause, now)
            or agent_reports.connect_time_left(snapshot, now)
            or agent_reports.report_time_left(snapshot, now)
        )
        return Outcome(requeue_after=whole_seconds(wait)) if wait else _on_failure(cause, snapshot, now)
    return (
        never_starts(snapshot.job, snapshot.current)
        or released_nodes(snapshot.job, snapshot.current, now)
        or resize.fit_to_capacity(snapshot, now)
        or deadlines.startup
    )


def _on_failure(cause: Cause, snapshot: Snapshot, now: datetime) -> Decision:
    """Return the decision on the root cause of a failure."""
    if snapshot.agent and (restart := without_agent(snapshot.job, cause)):
        return restart
    cause = replace(cause, reported_step=last_step_of(snapshot, cause.index))
    return failure_policy.apply_failure_policy(cause, snapshot, now)
