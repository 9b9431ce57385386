"""Plan the reconcile of a job: ordered checks, of which the first that applies decides. Pure.

Level-triggered: the stored job and its observed pods decide, not their history. Planning twice from the same snapshot
gives the same plan, and planning after the plan was executed gives no actions.
"""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import assert_never

from trainyard.api.constants import CONTROLLER_NAME
from trainyard.api.reasons import Reason
from trainyard.api.spec import CleanPods, Success
from trainyard.api.status import ConditionType as C, StatusChanges, TrainingJobStatus
from trainyard.domain.actions import DeleteJob, Outcome, Plan, soonest, whole_seconds
from trainyard.domain.decisions import Decision
from trainyard.domain.progress import goodput, stragglers
from trainyard.domain.progress.group_progress import last_step_of, progress
from trainyard.domain.recovery import agent_reports, failure_policy, stored_times, suspect_nodes
from trainyard.domain.recovery.agent_injection import image_problem
from trainyard.domain.recovery.restart_scope import attempt_of_all_agents
from trainyard.domain.recovery.root_cause import Cause, find_cause, root_cause_wait_left
from trainyard.domain.scaling import capacity, resize, scale_up
from trainyard.domain.state.snapshot import JobView, PodView, Snapshot
from trainyard.domain.state.worker_state import State, all_present, has_stopped, state
from trainyard.domain.status import transitions
from trainyard.domain.status.report import report
from trainyard.domain.stop import coordinated_stop, deadlines, pod_removal
from trainyard.domain.worker_pods import delete_pods, reconcile_pods

MAX_PLAUSIBLE_ATTEMPT = 1_000_000_000
"""The operator ignores pods and agents of later attempts: no job has so many, so that it did not create them."""
FAILED_WORKER_EXIT_TIMEOUT = timedelta(seconds=60)
"""How long the worker that failed the job may take to exit by itself. It never does where its node restarts its container."""


def plan(snapshot: Snapshot, now: datetime) -> Plan:
    """Return what to do for a job now."""
    # In whole seconds, as times are stored: a decision equals what is read later.
    now = now.replace(microsecond=0)
    job, status = snapshot.job, snapshot.job.status
    if not ours(job):
        return Plan(status)
    if job.deleting:
        removed, waits = pod_removal.removals(snapshot, snapshot.pods, now)
        return Plan(status, tuple(removed), requeue_after=soonest(waits))
    if status.finished:
        return transitions.store(job, _after_the_end(snapshot, now), now)
    snapshot = _prepare(snapshot, now)
    return transitions.store(snapshot.job, _first_that_applies(snapshot, now), now)


def _first_that_applies(snapshot: Snapshot, now: datetime) -> Outcome:
    """Return the outcome for a job that is neither deleted nor finished. The order of the checks decides between several."""
    job, status = snapshot.job, snapshot.job.status
    attempts = [*(pod.attempt for pod in snapshot.pods), attempt_of_all_agents(snapshot)]
    newest = max((attempt for attempt in attempts if attempt < MAX_PLAUSIBLE_ATTEMPT), default=0)
    if newest > status.attempt:
        return transitions.adopt(snapshot, newest)
    if not status.holds(C.SUSPENDED) and _succeeded(snapshot):
        return transitions.complete(job, snapshot.size.current, now)
    if held := _held(snapshot, now) or _paused(snapshot, now):
        return held
    snapshot = agent_reports.merge_agent_reports(snapshot, now)
    begun: StatusChanges = {}
    if status.internal.active_since is None:
        # The first reconcile of a job needs no transition of its own: its pods have attempt 1, as has a status never written.
        begun = transitions.start(job, now)
        snapshot = _with_status(snapshot, status.evolve(**begun))
    outcome = _decide(snapshot, now) or reconcile_pods(snapshot, now)
    return replace(outcome, changes={**begun, **outcome.changes})


def ours(job: JobView) -> bool:
    """Return whether this operator manages the job."""
    return job.spec.managed_by in {None, CONTROLLER_NAME}


def _prepare(snapshot: Snapshot, now: datetime) -> Snapshot:
    """Return the snapshot with what all later steps rely on: plausible times, the reported progress and the group's size."""
    status = stored_times.clamp_future_timestamps(snapshot.job.status, now)
    snapshot = _with_status(snapshot, status)
    if snapshot.reports:
        seen, active = (
            progress(snapshot, now),
            stored_times.active_time(status, goodput.step_reported_at(snapshot, now)),
        )
        reported: StatusChanges = {
            "progress": seen,
            "goodput": goodput.reported(snapshot, seen, active),
            "stragglers": stragglers.stragglers(snapshot, now),
        }
        snapshot = _with_status(snapshot, status.evolve(**reported))
    return replace(snapshot, decided_size=scale_up.decide_size(snapshot, now))


def _with_status(snapshot: Snapshot, status: TrainingJobStatus) -> Snapshot:
    return replace(snapshot, job=replace(snapshot.job, status=status))


def _decide(snapshot: Snapshot, now: datetime) -> Outcome | None:
    """Return the transition of a job that has not succeeded, if one is due. The order decides between several."""
    if decision := _before_failures(snapshot, now):
        return transitions.apply(decision, snapshot, now)
    if cause := find_cause(snapshot.current, _created(snapshot)):
        # Wait for missing agents first: a lost-peer error may be caused by a silent or finished worker.
        if wait := _cause_wait(cause, snapshot, now):
            return Outcome(requeue_after=whole_seconds(wait))
        return transitions.apply(_on_failure(cause, snapshot, now), snapshot, now)
    decision = _after_failures(snapshot, now)
    return transitions.apply(decision, snapshot, now) if decision else None


def _before_failures(snapshot: Snapshot, now: datetime) -> Decision | None:
    """Return the decision that is due whether a worker has failed or not."""
    if missed := deadlines.missed(snapshot.job, now):
        return missed
    if was := snapshot.size.resized_from:
        return resize.resize(snapshot, was, now)
    if snapshot.job.status.awaiting_rendezvous and snapshot.coordinator_up_since is None:
        return transitions.without_coordinator()
    return None


def _cause_wait(cause: Cause, snapshot: Snapshot, now: datetime) -> timedelta | None:
    """Return how much longer to wait until `cause` is known to be the root cause; None: it is."""
    return (
        root_cause_wait_left(cause, now)
        or agent_reports.connect_time_left(snapshot, now)
        or agent_reports.report_time_left(snapshot, now)
    )


def _on_failure(cause: Cause, snapshot: Snapshot, now: datetime) -> Decision:
    """Return the decision on the root cause of a failure."""
    if snapshot.agent and (problem := image_problem(snapshot.job, cause)):
        return transitions.without_agent(problem)
    cause = replace(cause, reported_step=last_step_of(snapshot, cause.index))
    return failure_policy.apply_failure_policy(cause, snapshot, now)


def _after_failures(snapshot: Snapshot, now: datetime) -> Decision | None:
    """Return the decision that is due where no worker has failed."""
    if nodes := suspect_nodes.released_nodes(snapshot.job, snapshot.current, now):
        return transitions.on_released_nodes(nodes)
    if size := capacity.feasible_size(snapshot, now):
        return resize.shrink(snapshot, size, capacity.unschedulable_message(snapshot), now)
    return deadlines.missed_startup(snapshot, now)


def _created(snapshot: Snapshot) -> list[int]:
    """Return the workers whose pods have existed: a missing one was deleted."""
    status = snapshot.job.status
    launched = status.internal.launched_attempt == status.attempt
    return [i for i in range(snapshot.size.desired) if launched or status.created_in_attempt(i) < status.attempt]


def _held(snapshot: Snapshot, now: datetime) -> Outcome | None:
    """Return the outcome of a coordinated stop, unless the active deadline of the job is over."""
    held = None if deadlines.overdue(snapshot.job, now) else coordinated_stop.plan_coordinated_stop(snapshot, now)
    if held is None or held.requeue_after is None:
        return held
    waits = [each for each in deadlines.waits(snapshot, now) if each > 0]
    return replace(held, requeue_after=soonest([held.requeue_after, *waits]))


def _paused(snapshot: Snapshot, now: datetime) -> Outcome | None:
    """Return the outcome of a suspension, or of a resume."""
    if not snapshot.job.spec.lifecycle.suspend:
        return transitions.resume(snapshot.job, now) if snapshot.job.status.holds(C.SUSPENDED) else None
    if not snapshot.job.status.holds(C.SUSPENDED):
        return transitions.suspend(snapshot, now)
    removed, waits = pod_removal.removals(snapshot, snapshot.pods, now)
    actions = [*delete_pods(snapshot.pods, Reason.SUSPENDED), *removed]
    return report(snapshot, Outcome(actions=actions, requeue_after=soonest(waits)), now)


def _after_the_end(snapshot: Snapshot, now: datetime) -> Outcome:
    """Return the outcome of a finished job: delete pods by `cleanPods`, and the job by `ttlSecondsAfterFinished`."""
    lifecycle, status = snapshot.job.spec.lifecycle, snapshot.job.status
    ttl, ended = lifecycle.ttl_seconds_after_finished, status.completion_time
    removed, waits = pod_removal.removals(snapshot, snapshot.pods, now)
    if ttl is not None and ended is not None:
        wait = ttl - (now - ended).total_seconds()
        if wait <= 0:
            return Outcome(actions=[DeleteJob(Reason.TTL_EXPIRED)])
        waits.append(wait)
    # The agent of the worker that failed the job exits by itself once it receives that: people need its log.
    last, left = status.last_failure, (ended or now) + FAILED_WORKER_EXIT_TIMEOUT - now
    spared = last.pod_uid if last and last.attempt == status.attempt and left > timedelta() else ""
    waits += [left.total_seconds() for p in snapshot.pods if p.uid == spared and not has_stopped(p)]
    doomed = delete_pods([p for p in snapshot.pods if _goes(p, lifecycle.clean_pods, spared)], Reason.JOB_FINISHED)
    return report(snapshot, Outcome(actions=[*doomed, *removed], requeue_after=soonest(waits)), now)


def _goes(pod: PodView, policy: CleanPods, spared: str) -> bool:
    match policy:
        case CleanPods.ALL:
            return True
        case CleanPods.RUNNING:
            return not pod.ended and not (pod.uid == spared and pod.exit is None)
        case CleanPods.NONE:
            return False
        case _:
            assert_never(policy)


def _succeeded(snapshot: Snapshot) -> bool:
    """Return whether the group has succeeded, in the size for which it was created: `replicas` may have changed since."""
    succeeded = [p for p in snapshot.current if state(p) is State.SUCCEEDED]
    needed = 1 if snapshot.job.spec.lifecycle.success is Success.WORKER_0 else snapshot.size.current
    return all_present(succeeded, needed)
