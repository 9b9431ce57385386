"""Match a root cause against the user's rules, then against the conventional meaning of its exit code. Pure."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from trainyard.api.constants import AGENT
from trainyard.api.internal_status import RestartBudget
from trainyard.api.recovery import FRAMEWORK_MEANINGS, MEANINGS, SIGBUS_CODE, Action, Meaning, Rule
from trainyard.api.spec import TrainingJobSpec
from trainyard.api.status import TrainingJobStatus
from trainyard.domain.recovery.restart_budget import STABLE_RUN, got_further
from trainyard.domain.recovery.root_cause import Cause
from trainyard.domain.state.termination import Exit
from trainyard.domain.state.worker_views import PodView

MAX_OUT_OF_MEMORY_FAILURES = 2
"""Consecutive failures without progress. A single one may be chance: one batch may be longer than all others."""
MAX_UNCOUNTED_EARLY_ENDS = 3
"""Consecutive attempts that ended early. A lost peer is found within this number, or fails itself; after it, the program is the cause."""


@dataclass(frozen=True, slots=True)
class Ruling:
    """The action for a root cause, and the rule that asks for it."""

    action: Action
    why: str = ""
    """The rule. Empty: no rule matched."""
    by_code: bool = False
    """Whether the conventional meaning of the exit code decides, not a rule of the user."""
    remedy: str = ""
    """How to get past the failure of the job, as a sentence without its full stop."""


def match_rules(cause: Cause, spec: TrainingJobSpec) -> Ruling:
    """Return the action of the first rule that matches `cause`; Restart if none does."""
    pod = cause.pod
    if pod is None:
        return Ruling(Action.RESTART)
    # The exit of a program that was asked to stop says nothing about the reason for the request.
    end = cause.failed_exit
    for number, rule in enumerate(spec.recovery.rules):
        if _applies(rule, pod, end):
            return Ruling(rule.action, f"recovery.rules[{number}] says {rule.action}")
    if end:
        for meaning in (*FRAMEWORK_MEANINGS.get(spec.framework, ()), *MEANINGS):
            if end.code in meaning.codes:
                why = f"exit code {end.code}: {_lowered(meaning.text)}"
                return Ruling(meaning.action, why, by_code=True, remedy=_remedy(meaning))
    return Ruling(Action.RESTART)


def foreign_init_container(cause: Cause, spec: TrainingJobSpec) -> Ruling | None:
    """Return the ruling for an init container that admission added: the user's rules and exit codes do not describe it."""
    end = cause.failed_exit
    if end is None or end.init_container is None:
        return None
    own = {AGENT, *(each["name"] for each in spec.template["spec"].get("initContainers") or ())}
    if end.init_container in own:
        return None
    return Ruling(
        Action.IGNORE, f"the template has no init container {end.init_container}; an admission policy added it"
    )


def ignored_too_often(ruling: Ruling, status: TrainingJobStatus, cause: Cause, now: datetime) -> bool:
    """Return whether an exit code that asks for an uncounted restart is counted all the same.

    That is so once attempts keep ending early with it and none makes progress.
    """
    ran = now - status.running_time if status.running_time else timedelta()
    early = ran < STABLE_RUN and not got_further(status.internal.restart_budget, cause)
    often = status.internal.backoff.count >= MAX_UNCOUNTED_EARLY_ENDS
    return ruling.by_code and ruling.action is Action.IGNORE and early and often


def memory_advice(budget: RestartBudget, spec: TrainingJobSpec, cause: Cause) -> str:
    """Return how to fix a job that runs out of memory repeatedly; empty while a restart may help."""
    often, end = budget.out_of_memory or 0, cause.exit
    if often < MAX_OUT_OF_MEMORY_FAILURES or end is None:
        return ""
    pod = spec.template["spec"]
    inits = [each for each in pod.get("initContainers") or () if each["name"] == end.init_container]
    container = next(iter(inits), pod["containers"][0])
    limit = ((container.get("resources") or {}).get("limits") or {}).get("memory")
    within = f" with a limit of {limit}" if limit else ""
    # Only these two ends are counted as out of memory: OOMKilled, and SIGBUS.
    if end.reason != "OOMKilled":
        return (
            f"out of memory {often} times without progress{within}, the last time of memory that was mapped: usually /dev/shm is full, which counts"
            f" towards resources.limits.memory of container {container['name']}; give it more, or have fewer workers load data;"
            f" a rule {{action: Restart, exitCodes: [{SIGBUS_CODE}]}} keeps restarting the job"
        )
    return (
        f"out of memory {often} times without progress{within}: give container {container['name']} more"
        " (resources.limits.memory), or have it use less; a rule {action: Restart, reasons: [OOMKilled]} keeps restarting the job"
    )


def contains(text: str, pattern: str) -> bool:
    """Return whether the parts of the pattern between its asterisks occur in the text one after another.

    Takes time in proportion to the text, whatever the pattern: no regular expression of a user is run here.
    """
    position = 0
    for part in pattern.split("*"):
        found = text.find(part, position)
        if found < 0:
            return False
        position = found + len(part)
    return True


def _applies(rule: Rule, pod: PodView, end: Exit | None) -> bool:
    sources = [end, pod.disruption, pod.issue]
    reasons = {each.reason for each in sources if each}
    messages = [each.message for each in sources if each]
    return (
        (rule.exit_codes is None or (end is not None and end.code in rule.exit_codes))
        and (rule.reasons is None or not reasons.isdisjoint(rule.reasons))
        and (rule.pod_conditions is None or not pod.conditions.isdisjoint(rule.pod_conditions))
        and (rule.message is None or any(contains(message, rule.message) for message in messages))
    )


def _remedy(meaning: Meaning) -> str:
    retry = "to retry on this exit code, add a rule to recovery.rules"
    return f"{meaning.remedy}; {retry}" if meaning.remedy else f"{retry[0].upper()}{retry[1:]}"


def _lowered(sentence: str) -> str:
    return sentence[0].lower() + sentence[1:].rstrip(".")
