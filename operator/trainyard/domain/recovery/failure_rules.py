"""What the end of a worker leads to: the user's rules, then the meaning of the exit code; and how many failures are left. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from trainyard.api.base import MOST
from trainyard.api.internal_status import RestartBudget
from trainyard.api.recovery import MEANINGS, SIGBUS_CODE, Action, Recovery, Rule
from trainyard.api.spec import TrainingJobSpec
from trainyard.api.status import Restarts, TrainingJobStatus
from trainyard.domain.recovery.root_cause import Cause
from trainyard.domain.state.snapshot import Exit, PodView

MOST_OUT_OF_MEMORY = 2
"""Failures in a row. Once may be chance: a batch longer than all others, say."""
STEADY = timedelta(seconds=60)
"""An attempt whose workers all ran for so long before one was taken away got further; and whatever ended it, the delay starts over."""
MOST_AT_NO_CHARGE = 3
"""Attempts in a row that ended early. A peer's loss is seen there, or comes as its own failure; what comes again is the program's."""
LONG = timedelta(hours=1)
"""An attempt whose workers all ran for so long before a failure of which no step is known got further: what comes again every few minutes is
no progress, and to what comes once in hours a pod's start is nothing."""


@dataclass(frozen=True, slots=True)
class Ruling:
    """What is to happen, and by which rule."""

    action: Action
    why: str = ""
    """Empty where there is no rule."""
    by_code: bool = False
    """Whether what exit codes mean by convention says so, and no rule of the user's."""


def ruling(cause: Cause, recovery: Recovery) -> Ruling:
    """What follows from `cause`. The first rule that applies decides."""
    pod = cause.pod
    if pod is None:
        return Ruling(Action.RESTART)
    # What a program did once it was asked to go says nothing of why that was.
    end = pod.exit if cause.failed else None
    for number, rule in enumerate(recovery.rules):
        if _applies(rule, pod, end):
            return Ruling(rule.action, f"recovery.rules[{number}] says {rule.action}")
    if end:
        for meaning in MEANINGS:
            if end.code in meaning.codes:
                return Ruling(meaning.action, f"exit code {end.code}: {_lowered(meaning.text)}", by_code=True)
    return Ruling(Action.RESTART)


def doubted(ruled: Ruling, status: TrainingJobStatus, cause: Cause, now: datetime) -> bool:
    """Whether an exit code that asks for a restart at no charge is not believed any more: attempts keep ending so, and none gets anywhere."""
    ran = now - status.running_time if status.running_time else timedelta()
    early = ran < STEADY and not got_further(status.internal.restart_budget, cause)
    return (
        ruled.by_code and ruled.action is Action.IGNORE and early and status.internal.backoff.count >= MOST_AT_NO_CHARGE
    )


def used(restarts: Restarts, budget: RestartBudget, recovery: Recovery, now: datetime) -> int:
    """How many of these failures count towards `maxRestarts` now."""
    if recovery.window_seconds is not None:
        return len(_recent(budget, recovery, now))
    # Whatever somebody has written into the status by hand.
    return max(0, restarts.failures - (budget.forgiven or 0))


def got_further(budget: RestartBudget, cause: Cause) -> bool:
    """Whether the job has come further than at any end before."""
    step, furthest = cause.step, budget.furthest_step
    return step is not None and furthest is not None and step > furthest


def restarts_after(
    status: TrainingJobStatus, recovery: Recovery, cause: Cause, now: datetime
) -> tuple[Restarts, RestartBudget]:
    """The restarts with one end more, and what is left of the budget, at this moment.

    One that comes further than all before, charged or not, shows that failures were overcome: they are forgiven.
    """
    restarts, budget, step = status.restarts, status.internal.restart_budget, cause.step
    further = got_further(budget, cause)
    if step is not None:
        budget = budget.evolve(furthest_step=max(step, budget.furthest_step or 0))
    if further:
        budget = budget.evolve(
            forgiven=restarts.failures or budget.forgiven,
            out_of_memory=None,
            recent=None if budget.recent is None else [],
        )
    if step is None and status.running_time is not None and now - status.running_time >= LONG:
        # A leak that takes hours to fill the memory can be lived with.
        budget = budget.evolve(out_of_memory=None)
    if not cause.charged:
        return restarts.evolve(disruptions=more(restarts.disruptions)), budget
    budget = _charged(restarts, budget, in_a_row(status, cause), recovery, cause, now)
    hangs = more(restarts.hangs or 0) if cause.hung else restarts.hangs
    return restarts.evolve(failures=more(restarts.failures), hangs=hangs), budget


def _charged(
    restarts: Restarts, budget: RestartBudget, in_a_row: int, recovery: Recovery, cause: Cause, now: datetime
) -> RestartBudget:
    windowed, forgiven = recovery.window_seconds is not None, budget.forgiven
    if budget.recent is not None and not windowed:
        # The window was taken away: what had left it does not come back.
        forgiven = max(forgiven or 0, restarts.failures - len(budget.recent))
    return budget.evolve(
        forgiven=forgiven,
        at_same_step=None if cause.step is None else more(in_a_row),
        out_of_memory=more(budget.out_of_memory or 0) if cause.out_of_memory else None,
        recent=[*_recent(budget, recovery, now), now] if windowed else None,
    )


def in_a_row(status: TrainingJobStatus, cause: Cause) -> int:
    """How many failures in a row were at the step of `cause`, without it."""
    last = status.last_failure
    same = cause.step is not None and last is not None and last.step == cause.step
    return (status.internal.restart_budget.at_same_step or 0) if same else 0


def starved(budget: RestartBudget, spec: TrainingJobSpec, cause: Cause) -> str:
    """What is to be said where there is no use in trying again with this memory; else nothing."""
    often, end = budget.out_of_memory or 0, cause.pod.exit if cause.pod else None
    if often < MOST_OUT_OF_MEMORY or end is None:
        return ""
    pod = spec.template["spec"]
    inits = [each for each in pod.get("initContainers") or () if each["name"] == end.init_container]
    container = next(iter(inits), pod["containers"][0])
    limit = ((container.get("resources") or {}).get("limits") or {}).get("memory")
    within = f" with a limit of {limit}" if limit else ""
    if end.code == SIGBUS_CODE and end.reason != "OOMKilled":
        return (
            f"out of memory {often} times without a step further{within}, the last time of memory that was mapped: as a rule /dev/shm is full, which counts"
            f" towards resources.limits.memory of container {container['name']}; give it more, or have fewer workers load data;"
            f" a rule {{action: Restart, exitCodes: [{SIGBUS_CODE}]}} tries on"
        )
    return (
        f"out of memory {often} times without a step further{within}: give container {container['name']} more"
        " (resources.limits.memory), or have it use less; a rule {action: Restart, reasons: [OOMKilled]} tries on"
    )


def more(count: int) -> int:
    """One more, unless somebody has set it as high as it goes."""
    return min(count + 1, MOST)


def contains(text: str, pattern: str) -> bool:
    """Whether the parts of the pattern between its asterisks stand in the text one after another.

    Takes time in proportion to the text, whatever the pattern: no regular expression of a user is run here.
    """
    place = 0
    for part in pattern.split("*"):
        found = text.find(part, place)
        if found < 0:
            return False
        place = found + len(part)
    return True


def _applies(rule: Rule, pod: PodView, end: Exit | None) -> bool:
    said = [end, pod.disruption, pod.issue]
    reasons = {each.reason for each in said if each}
    messages = [each.message for each in said if each]
    return (
        (rule.exit_codes is None or (end is not None and end.code in rule.exit_codes))
        and (rule.reasons is None or not reasons.isdisjoint(rule.reasons))
        and (rule.pod_conditions is None or not pod.conditions.isdisjoint(rule.pod_conditions))
        and (rule.message is None or any(contains(message, rule.message) for message in messages))
    )


def _recent(budget: RestartBudget, recovery: Recovery, now: datetime) -> Sequence[datetime]:
    """The times of the failures that still count."""
    window = timedelta(seconds=recovery.window_seconds or 0)
    return [time for time in budget.recent or () if now - time < window][-recovery.max_restarts - 1 :]


def _lowered(sentence: str) -> str:
    return sentence[0].lower() + sentence[1:].rstrip(".")
