"""What the API server's refusals mean for a job, and how the status tells of them."""

from dataclasses import dataclass, replace
from datetime import datetime

from trainyard.api.reasons import Reason
from trainyard.api.status import ConditionType as C
from trainyard.domain.actions import Event, Plan
from trainyard.domain.conditions import apply_conditions, condition_false, condition_true
from trainyard.domain.decisions import Fail
from trainyard.domain.state.snapshot import JobView
from trainyard.domain.status import transitions

RETRY_AFTER = 15.0
"""Seconds until a refused pod is tried again: a quota or a policy changes by somebody's hand, not by itself."""
NAMESAKE_GONE_AFTER = 3.0
"""Seconds until a name is tried again: a deleted job of the same name takes its pods and its Service along soon."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """An action that the API server did not accept, and would not accept a moment later either."""

    reason: Reason
    message: str


def refused(job: JobView, plan: Plan, refusal: Refusal, now: datetime) -> Plan:
    """`plan` as it stands after one of its actions was refused."""
    now = now.replace(microsecond=0)
    wait = NAMESAKE_GONE_AFTER if refusal.reason is Reason.NAME_CONFLICT else RETRY_AFTER
    wait = wait if plan.requeue_after is None else min(wait, plan.requeue_after)
    over = plan.status.finished or plan.status.holds(C.SUSPENDED)
    if refusal.reason is Reason.INVALID_TEMPLATE and not over:
        # Not repeated: the template cannot be changed while the job is active, so the answer would stay the same.
        decision = Fail(refusal.reason, f"no pod can be made of spec.template: {refusal.message}")
        return transitions.fail(replace(job, status=plan.status), decision, now)
    # A group that trains goes on where those that are to join it are refused; and where only deletions are, why it does not run stays what it was.
    joins = plan.status.internal.joining is not None and plan.status.holds(C.RUNNING)
    kind = C.STALLED if over else C.RESIZING if joins else C.RUNNING
    update = (condition_false if kind is C.RUNNING else condition_true)(kind, refusal.reason, refusal.message)
    stored = job.status.condition(update.kind)
    # The plan may have said that all is well again. That was never stored, so nothing has changed in between.
    others = [c for c in plan.status.conditions if c.type != update.kind]
    before = plan.status.evolve(conditions=[*others, *([stored] if stored else [])])
    status = plan.status.evolve(conditions=apply_conditions(before, [update], job.generation, now))
    reported = stored is not None and stored.reason == refusal.reason
    events = [] if reported else [Event("Warning", refusal.reason, refusal.message)]
    return replace(plan, status=status, events=[*plan.events, *events], requeue_after=wait)
