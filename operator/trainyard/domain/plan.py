"""Plan the reconcile of a job: gather the facts, then ordered checks, of which the first that applies decides. Pure.

Level-triggered: the stored job and its observed pods decide, not their history. Planning twice from the same snapshot
gives the same plan, and planning after the plan was executed gives no actions.
"""

from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

from trainyard.api.constants import CONTROLLER_NAME
from trainyard.api.reasons import Reason
from trainyard.domain.decisions import (
    Complete,
    Decision,
    Outcome,
    Plan,
    PodChanges,
    Restart,
    Suspend,
    soonest,
    whole_seconds,
)
from trainyard.domain.progress import goodput, stragglers
from trainyard.domain.progress.group_progress import progress
from trainyard.domain.queueing.queue_steps import at_the_end, in_queue, while_suspended
from trainyard.domain.queueing.workload_upkeep import while_running
from trainyard.domain.recovery import agent_reports, failure_policy
from trainyard.domain.recovery.adoption import adoption
from trainyard.domain.recovery.agent_reports import MergedReports
from trainyard.domain.recovery.lone_members import restore_lone_members
from trainyard.domain.recovery.outdated_group import replace_outdated_group
from trainyard.domain.recovery.root_cause import find_cause, root_cause_wait_left
from trainyard.domain.recovery.start_errors import never_starts
from trainyard.domain.recovery.stored_times import clamp_future_timestamps
from trainyard.domain.recovery.suspect_nodes import released_nodes
from trainyard.domain.scaling import partial_placement, resize
from trainyard.domain.scaling.gang import decide_gang
from trainyard.domain.scaling.group_size import decide_size
from trainyard.domain.state.queue_hold import queue_hold
from trainyard.domain.state.roles import deciding
from trainyard.domain.state.snapshot import JobView, Snapshot
from trainyard.domain.state.stored_success import remember_success
from trainyard.domain.state.worker_views import State
from trainyard.domain.status import transitions
from trainyard.domain.status.report import report
from trainyard.domain.status.slow_init import with_slow_init
from trainyard.domain.stop import pod_removal
from trainyard.domain.stop.coordinated_stop import plan_coordinated_stop
from trainyard.domain.stop.deadlines import Deadlines, check_deadlines
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
    if snapshot.job.deleting or status.finished:
        step: Step | None = _at_the_end(snapshot, now)
    else:
        snapshot = _gather(snapshot, now)
        step = _interruption(snapshot, now)
    if step is None:
        if status.internal.active_since is None:
            # The first reconcile of a job needs no transition of its own: its pods have attempt 1, as has a status never written.
            begun = snapshot.job.status.evolve(**transitions.start(snapshot.job, now))
            snapshot = replace(snapshot, job=replace(snapshot.job, status=begun))
        agents = agent_reports.merge_agent_reports(snapshot, now)
        snapshot, deadlines = agents.snapshot, check_deadlines(agents.snapshot, now)
        waits = [*deadlines.waits, *agents.waits, *partial_placement.waits(snapshot, now)]
        step = _decide(agents, deadlines, now) or reconcile_pods(snapshot, waits, now)
        if isinstance(step, PodChanges) and (reports := while_running(snapshot)):
            step = replace(step, actions=[*step.actions, *reports])
    outcome = report(snapshot, step, now) if isinstance(step, PodChanges) else step
    return transitions.conclude(outcome, snapshot, now)


def ours(job: JobView) -> bool:
    """Return whether this operator manages the job."""
    return job.spec.managed_by in {None, CONTROLLER_NAME}


def _gather(snapshot: Snapshot, now: datetime) -> Snapshot:
    """Return the snapshot with what all later steps rely on: plausible times, progress, successes, the group's size, gang and queue."""
    status = snapshot.job.status
    changes = clamp_future_timestamps(status, now)
    if snapshot.reports:
        seen = progress(snapshot, now)
        reported: StatusChanges = {
            "progress": seen,
            "goodput": goodput.reported(snapshot, seen, now),
            "stragglers": stragglers.stragglers(snapshot, now),
        }
        changes = {**changes, **reported}
    if (auto := snapshot.job.auto_processes) and auto.counted != status.internal.counted_processes:
        changes = {**changes, "counted_processes": auto.counted}
    if changes:
        snapshot = replace(snapshot, job=replace(snapshot.job, status=status.evolve(**changes)))
    snapshot = with_slow_init(remember_success(snapshot), now)
    snapshot = replace(snapshot, decided_size=decide_size(snapshot, now))
    # A snapshot that stays the same keeps what it has computed.
    if (gang := decide_gang(snapshot)) != snapshot.gang:
        snapshot = replace(snapshot, gang=gang)
    hold = queue_hold(snapshot)
    return snapshot if hold == snapshot.hold else replace(snapshot, hold=hold)


def _interruption(snapshot: Snapshot, now: datetime) -> Step | None:
    """Return what a job does before its workers' failures count: adopt an attempt, succeed, stop in coordination, or rest."""
    job, suspended = snapshot.job, snapshot.job.status.suspended
    if adopted := adoption(snapshot):
        return adopted
    if not job.status.at_rest and not snapshot.outdated and _succeeded(snapshot):
        return Complete()
    deadlines = check_deadlines(snapshot, now)
    if deadlines.active is None and (held := plan_coordinated_stop(snapshot, now)):
        if held.requeue_after is None:
            return held
        return replace(held, requeue_after=soonest([held.requeue_after, *deadlines.waits]))
    if suspended:
        return while_suspended(snapshot, now)
    return Suspend() if job.spec.lifecycle.suspend else in_queue(snapshot, now)


def _at_the_end(snapshot: Snapshot, now: datetime) -> Step:
    """Return what a job does that has finished or is being deleted."""
    step, more = pod_removal.at_rest(snapshot, now), at_the_end(snapshot, now)
    return replace(step, actions=[*step.actions, *more]) if more else step


def _succeeded(snapshot: Snapshot) -> bool:
    """Return whether the members have succeeded that decide about the job."""
    # In the size for which the group was created: `replicas` may have changed since.
    members = deciding(snapshot.job.spec, snapshot.size.current)
    return {p.index for p in snapshot.current if p.state is State.SUCCEEDED}.issuperset(members)


def _decide(agents: MergedReports, deadlines: Deadlines, now: datetime) -> Step | None:
    """Return what ends the current attempt, if anything does. The order decides between several."""
    snapshot = agents.snapshot
    if deadlines.active:
        return deadlines.active
    if outdated := replace_outdated_group(snapshot):
        return outdated
    if was := snapshot.size.resized_from:
        return resize.resize(snapshot, was, now)
    if snapshot.job.status.awaiting_rendezvous and snapshot.coordinator_up_since is None:
        return Restart(Reason.AGENT_DISABLED, "the rendezvous cannot open: the coordinator is disabled")
    needed = [pod for pod in snapshot.current if not snapshot.job.is_lone(pod.index)]
    if cause := find_cause(needed, [index for index in snapshot.created if not snapshot.job.is_lone(index)]):
        wait = root_cause_wait_left(cause, now) or agents.undecided
        if wait:
            return Outcome(requeue_after=whole_seconds(wait))
        return failure_policy.apply_failure_policy(cause, snapshot, now)
    return (
        restore_lone_members(snapshot)
        or never_starts(snapshot.job, snapshot.current)
        or released_nodes(snapshot.job, snapshot.current, now)
        or resize.fit_to_capacity(snapshot, now)
        or partial_placement.release_nodes(snapshot, now)
        or deadlines.startup
    )
