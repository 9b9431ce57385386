"""What follows from the end of an attempt: the group starts anew, or the job has failed. Pure."""

from dataclasses import replace
from datetime import datetime

from trainyard.api.reasons import Reason
from trainyard.api.recovery import Action as Reaction
from trainyard.domain.actions import Plan
from trainyard.domain.progress.hang import culprit
from trainyard.domain.recovery import agent_reports, suspect_nodes
from trainyard.domain.recovery.failure_rules import Ruling, doubted, restarts_after, ruling, starved, used
from trainyard.domain.recovery.root_cause import Cause, describe
from trainyard.domain.state.snapshot import Snapshot
from trainyard.domain.status import transitions
from trainyard.domain.stop import coordinated_stop


def settle(cause: Cause, snapshot: Snapshot, now: datetime) -> Plan:
    """The verdict on a job whose attempt has ended because of `cause`."""
    job, cause = snapshot.job, _blaming(cause, snapshot)
    recovery, told = job.spec.recovery, describe(cause, job.status.attempt) + coordinated_stop.told(job.status)
    ordered = coordinated_stop.ordered(job.status, cause)
    ruled = Ruling(Reaction.IGNORE, "it was told to") if ordered else ruling(cause, recovery)
    if doubted(ruled, job.status, cause, now):
        ruled, told = Ruling(Reaction.RESTART), f"{told} (counted: the attempts before it ended early too)"
    elsewhere = ruled.action is Reaction.RESTART_ELSEWHERE and suspect_nodes.can_go_elsewhere(job, cause.pod, now)
    if ruled.action is Reaction.FAIL:
        return transitions.fail(job, Reason.NON_RETRYABLE, f"{told}; {ruled.why}", now, cause)
    if cause.failed and (elsewhere or ruled.action is Reaction.IGNORE):
        cause, told = replace(cause, counts=False), f"{told} (not counted: {ruled.why})"
    elif not cause.failed and ruled.why and ruled.action is Reaction.RESTART:
        cause, told = replace(cause, counts=True), f"{told} (counted: {ruled.why})"
    if not cause.charged:
        limit = recovery.max_disruptions
        free = ordered or (cause.pod is not None and agent_reports.restarts(job.status, cause.pod))
        if limit is not None and job.status.restarts.disruptions >= limit and not free:
            told += f"; recovery.maxDisruptions is {limit}"
            return transitions.fail(job, Reason.DISRUPTIONS_EXHAUSTED, told, now, cause)
        return transitions.restart(snapshot, cause, told, now, elsewhere=elsewhere)
    restarts, after = restarts_after(job.status, recovery, cause, now)
    if not ruled.why and (why := starved(after, job.spec, cause)):
        return transitions.fail(job, Reason.NON_RETRYABLE, f"{told}; {why}", now, cause)
    if after.at_same_step and after.at_same_step >= recovery.no_progress_limit:
        told += f"; the last {after.at_same_step} failures were all after step {cause.step}"
        told += f" (recovery.noProgressLimit is {recovery.no_progress_limit})"
        return transitions.fail(job, Reason.NO_PROGRESS, told, now, cause)
    count = used(restarts, after, recovery, now)
    within = f" in {recovery.window_seconds} seconds" if recovery.window_seconds else ""
    if count > recovery.max_restarts:
        told += f"; recovery.maxRestarts is {recovery.max_restarts}{within}"
        return transitions.fail(job, Reason.RESTARTS_EXHAUSTED, told, now, cause)
    before = f"; {after.forgiven} before it are forgiven" if after.forgiven and not within else ""
    told += f" ({count} of {recovery.max_restarts} restarts used{within}{before})"
    return transitions.restart(snapshot, cause, told, now)


def _blaming(cause: Cause, snapshot: Snapshot) -> Cause:
    """The cause of a hang with the rank that the others wait for, unless the agent that ended first has named it."""
    found = culprit(snapshot) if cause.hung else None
    named = cause.pod.exit.rank if cause.pod and cause.pod.exit else None
    return cause if found is None or found.rank == named else replace(cause, culprit=found)
