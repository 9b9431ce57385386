"""Report the API server's rejections in the status, and decide when to try again. Pure."""

from dataclasses import dataclass, replace
from datetime import datetime

from trainyard.api.reasons import Reason
from trainyard.api.status import ConditionType as C
from trainyard.domain.decisions import Event, Fail, Plan, SetFalse, SetTrue
from trainyard.domain.state.snapshot import JobView
from trainyard.domain.status import transitions
from trainyard.domain.status.transitions import apply_conditions
from trainyard.domain.wording import same_obstacle

RETRY_AFTER = 15.0
"""Seconds until a rejected pod is tried again: people change quotas and policies, so they change rarely."""
NAMESAKE_GONE_AFTER = 3.0
"""Seconds until a name is tried again: the pods and the Service of a deleted job with the same name go soon."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """The rejection of an action by the API server that an immediate retry would not change."""

    reason: Reason
    message: str
    expected: bool = False
    """Whether it passes by itself, so that no event reports it."""


def refused(job: JobView, plan: Plan, refusal: Refusal, now: datetime) -> Plan:
    """Return the plan after the API server rejected one of its actions."""
    now = now.replace(microsecond=0)
    wait = NAMESAKE_GONE_AFTER if refusal.reason is Reason.NAME_CONFLICT else RETRY_AFTER
    wait = wait if plan.requeue_after is None else min(wait, plan.requeue_after)
    over = plan.status.finished or plan.status.at_rest
    if refusal.reason is Reason.INVALID_TEMPLATE and not over:
        # Not repeated: the template cannot be changed while the job is active, so the answer would stay the same.
        template = "spec.template with the fields of spec.roles" if job.spec.roles else "spec.template"
        decision = Fail(refusal.reason, f"{template} is not a valid pod: {refusal.message}")
        planned = replace(job, status=plan.status)
        return transitions.store(planned, transitions.fail(planned, decision, now), now)
    # A running group continues where its joining workers are rejected. Where only deletions are, the reason of Running stays.
    joins = plan.status.internal.joining is not None and plan.status.holds(C.RUNNING)
    kind = C.STALLED if over else C.RESIZING if joins else C.RUNNING
    update = (SetFalse if kind is C.RUNNING else SetTrue)(kind, refusal.reason, refusal.message)
    stored = job.status.condition(update.kind)
    # The plan may report that the job has recovered. That was never stored, so the stored condition still applies.
    others = [c for c in plan.status.conditions if c.type != update.kind]
    before = plan.status.evolve(conditions=[*others, *([stored] if stored else [])])
    status = plan.status.evolve(conditions=apply_conditions(before, [update], job.generation, now))
    reported = refusal.expected or (
        stored is not None and stored.reason == refusal.reason and same_obstacle(refusal.message, stored.message)
    )
    events = [] if reported else [Event("Warning", refusal.reason, refusal.message)]
    return replace(plan, status=status, events=[*plan.events, *events], requeue_after=wait)
