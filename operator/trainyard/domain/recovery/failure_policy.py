"""Decide what follows a worker failure: the group restarts, or the job fails. Pure: no I/O, no clock.

The root cause is classified by the rules, counted once, and checked against each limit. The message is composed last.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from trainyard.api.base import increment
from trainyard.api.internal_status import Backoff
from trainyard.api.reasons import Reason
from trainyard.api.recovery import SAVED_CODE, Action, RestartScope
from trainyard.api.status import StatusChanges, TrainingJobStatus
from trainyard.domain.decisions import Fail, Restart
from trainyard.domain.progress.group_progress import last_step_of
from trainyard.domain.progress.hang import culprit
from trainyard.domain.recovery.agent_injection import without_agent
from trainyard.domain.recovery.agent_reports import restarts_container
from trainyard.domain.recovery.failure_rules import (
    Ruling,
    foreign_init_container,
    ignored_too_often,
    match_rules,
    memory_advice,
)
from trainyard.domain.recovery.repeated_failures import advice, proof
from trainyard.domain.recovery.restart_budget import STABLE_RUN, CountedEnd, count_end, got_further
from trainyard.domain.recovery.restart_scope import choose_restart_scope, describe_restart
from trainyard.domain.recovery.root_cause import Cause, describe
from trainyard.domain.recovery.start_errors import start_fix
from trainyard.domain.recovery.stored_times import delay_after
from trainyard.domain.recovery.suspect_nodes import can_avoid_node, describe_avoidance, record_failure
from trainyard.domain.state.node_signals import NO_SIGNALS, NodeSignals
from trainyard.domain.state.snapshot import JobView, Snapshot
from trainyard.domain.wording import counted


@dataclass(frozen=True, slots=True)
class Failure:
    """A root cause with what the rules make of it."""

    job: JobView
    cause: Cause
    ruling: Ruling
    requested: bool
    """Whether the worker exited because of a coordinated stop."""
    repeated: bool
    """Whether an exit code that is not counted by convention is counted because it came too often."""
    avoid_node: bool
    """Whether a rule requests another node, and the job may avoid one more."""
    signals: NodeSignals = NO_SIGNALS
    """What the cluster says is wrong with the node of the cause."""


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit that the job has reached."""

    reason: Reason
    detail: str
    """Which limit, then what to do."""


def apply_failure_policy(cause: Cause, snapshot: Snapshot, now: datetime) -> Fail | Restart:
    """Return the cheapest restart that may help, or the limit that the job has reached.

    Only the root cause counts against the budget; failures that it caused in other workers do not.
    """
    if snapshot.agent and (restart := without_agent(snapshot.job, cause)):
        return restart
    failure = _classify(_with_reports(cause, snapshot), snapshot.job, now)
    if cause.pod and cause.pod.node:
        failure = replace(failure, signals=snapshot.node_signals.get(cause.pod.node, NO_SIGNALS))
    end = count_end(snapshot.job, failure.cause, now)
    for check in LIMITS:
        if limit := check(failure, end):
            return Fail(limit.reason, f"{_describe(failure)}; the job failed: {limit.detail}", end.changes)
    return _restart(failure, end, snapshot, now)


def _with_reports(cause: Cause, snapshot: Snapshot) -> Cause:
    """Return the cause with the last step that its worker has reported.

    A hang also has the rank that blocks the others, unless the agent that exited first has named it.
    """
    cause = replace(cause, reported_step=last_step_of(snapshot, cause.index))
    found = culprit(snapshot) if cause.hung else None
    named = cause.exit.rank if cause.exit else None
    return cause if found is None or found.rank == named else replace(cause, culprit=found)


def _classify(cause: Cause, job: JobView, now: datetime) -> Failure:
    """Return the failure with the rule that decides, and whether it is counted."""
    requested = _exited_on_request(job.status, cause)
    ruling = (
        Ruling(Action.IGNORE, "coordinated stop")
        if requested
        else foreign_init_container(cause, job.spec) or match_rules(cause, job.spec)
    )
    repeated = ignored_too_often(ruling, job.status, cause, now)
    if repeated:
        ruling = Ruling(Action.RESTART)
    avoid = ruling.action is Action.RESTART_ELSEWHERE and can_avoid_node(job, cause.pod, now)
    if cause.failed and (avoid or ruling.action is Action.IGNORE):
        cause = replace(cause, counted_by_rule=False)
    elif not cause.failed and ruling.why and ruling.action is Action.RESTART:
        cause = replace(cause, counted_by_rule=True)
    return Failure(job, cause, ruling, requested, repeated, avoid)


def _exited_on_request(status: TrainingJobStatus, cause: Cause) -> bool:
    """Return whether a worker exited because of a coordinated stop. Rules on its exit code are meant for other exits."""
    stop, end = status.stopping, cause.failed_exit
    return stop is not None and stop.step is not None and end is not None and end.code == SAVED_CODE


def _forbidden(failure: Failure, _: CountedEnd) -> Limit | None:
    """A rule, or the exit code, says that no restart helps."""
    ruling = failure.ruling
    if ruling.action is not Action.FAIL:
        return None
    return Limit(Reason.NON_RETRYABLE, f"{ruling.why}. {ruling.remedy}" if ruling.remedy else ruling.why)


def _cannot_start(failure: Failure, _: CountedEnd) -> Limit | None:
    """The node cannot start the container, because of its command, its arguments or its working directory."""
    end = failure.cause.failed_exit
    fix = start_fix(end) if end and not failure.ruling.why else ""
    return Limit(Reason.NON_RETRYABLE, f"no restart can fix this: {fix}") if fix else None


def _disruptions_exhausted(failure: Failure, _: CountedEnd) -> Limit | None:
    """The job has been disrupted more often than `maxDisruptions` allows."""
    status, pod = failure.job.status, failure.cause.pod
    limit = failure.job.spec.recovery.max_disruptions
    if failure.cause.counted or limit is None or status.restarts.disruptions < limit:
        return None
    if failure.requested or (pod is not None and restarts_container(status, pod)):
        return None
    count = counted(status.restarts.disruptions + 1, "disruption")
    return Limit(
        Reason.DISRUPTIONS_EXHAUSTED,
        f"{count}, and recovery.maxDisruptions allows {limit}. Raise recovery.maxDisruptions, then create the job again",
    )


def _out_of_memory(failure: Failure, end: CountedEnd) -> Limit | None:
    """The job runs out of memory repeatedly, and no rule requests a restart."""
    if not failure.cause.counted or failure.ruling.why:
        return None
    advice = memory_advice(end.budget, failure.job.of_member(failure.cause.index).spec, failure.cause)
    return Limit(Reason.NON_RETRYABLE, advice) if advice else None


def _repeated(failure: Failure, end: CountedEnd) -> Limit | None:
    """The same exception at the same place ended each attempt before a step, and no rule requests a restart."""
    if not failure.cause.counted or failure.ruling.why:
        return None
    why = proof(end.budget.repeated, failure.cause)
    return Limit(Reason.NON_RETRYABLE, why) if why else None


def _no_progress(failure: Failure, end: CountedEnd) -> Limit | None:
    """Consecutive attempts failed at the same step."""
    limit, failures = failure.job.spec.recovery.no_progress_limit, end.budget.at_same_step
    if not failure.cause.counted or not failures or failures < limit:
        return None
    same = f"the last {failures} failures happened after step {failure.cause.step}"
    return Limit(
        Reason.NO_PROGRESS,
        f"{same} (recovery.noProgressLimit is {limit}). Fix the error at that step, then create the job again",
    )


def _restarts_exhausted(failure: Failure, end: CountedEnd) -> Limit | None:
    """The job has failed more often than `maxRestarts` allows."""
    limit = failure.job.spec.recovery.max_restarts
    if not failure.cause.counted or end.used <= limit:
        return None
    used = f"{counted(end.used, 'failure')}{_window(failure.job)}"
    return Limit(
        Reason.RESTARTS_EXHAUSTED,
        f"{used}, and recovery.maxRestarts allows {limit}."
        " Fix the error or raise recovery.maxRestarts, then create the job again",
    )


LIMITS: tuple[Callable[[Failure, CountedEnd], Limit | None], ...] = (
    _forbidden,
    _cannot_start,
    _disruptions_exhausted,
    _out_of_memory,
    _repeated,
    _no_progress,
    _restarts_exhausted,
)
"""The first limit that is reached is the reason of the job's failure."""


def _restart(failure: Failure, end: CountedEnd, snapshot: Snapshot, now: datetime) -> Restart:
    """Return the restart with its backoff, its scope and the nodes that it avoids."""
    job, status, cause = snapshot.job, snapshot.job.status, failure.cause
    ran = now - status.running_time if status.running_time else timedelta()
    progressed = ran >= STABLE_RUN or got_further(status.internal.restart_budget, cause)
    count = 0 if progressed else status.internal.backoff.count
    delay = delay_after(count)
    nodes = record_failure(job, cause, now, elsewhere=failure.avoid_node, faults=failure.signals.faults)
    chosen = choose_restart_scope(snapshot, cause, nodes, ran)
    backoff = Backoff(
        count=increment(count),
        not_before=now + timedelta(seconds=delay),
        scope=chosen.scope,
        scope_attempts=chosen.attempts,
    )
    changes: StatusChanges = {
        **end.changes,
        "backoff": backoff,
        "suspect_nodes": nodes,
        "group": chosen.group,
    }
    if chosen.scope in {RestartScope.PROCESS, RestartScope.CONTAINER}:
        changes["launched_attempt"] = status.attempt + 1
    message = (
        f"{_describe(failure)}{_usage(failure, end)}{advice(cause)}{describe_avoidance(status.suspect_nodes, nodes)}"
    )
    return Restart(cause.reason, message, describe_restart(chosen, snapshot.size.desired), delay, changes)


def _describe(failure: Failure) -> str:
    """Return the cause, the coordinated stop that it followed, and why it is counted or not."""
    status, cause = failure.job.status, failure.cause
    stop = status.stopping
    after = "" if stop is None or stop.step is None else f"; all ranks were requested to stop after step {stop.step}"
    return f"{describe(cause, status.attempt)}{_node_note(failure)}{after}{_counting_note(failure)}"


def _node_note(failure: Failure) -> str:
    """Return what the cluster says of the node of the cause; empty where nothing is wrong with it, or it is not known."""
    pod, text = failure.cause.pod, failure.signals.text
    return f"; node {pod.node}: {text}" if pod and text else ""


def _counting_note(failure: Failure) -> str:
    if failure.repeated:
        return " (counted: the previous attempts also ended early)"
    if failure.cause.counted_by_rule is None:
        return ""
    return f" ({'counted' if failure.cause.counted_by_rule else 'not counted'}: {failure.ruling.why})"


def _usage(failure: Failure, end: CountedEnd) -> str:
    """Return how much of the restart budget is used; empty where the failure is not counted."""
    if not failure.cause.counted:
        return ""
    within, limit = _window(failure.job), failure.job.spec.recovery.max_restarts
    forgiven = f"; {end.budget.forgiven} earlier failures no longer count" if end.budget.forgiven and not within else ""
    return f" ({end.used} of {limit} restarts used{within}{forgiven})"


def _window(job: JobView) -> str:
    seconds = job.spec.recovery.window_seconds
    return f" in {seconds} seconds" if seconds else ""
