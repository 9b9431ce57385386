"""What the end of a worker leads to: the user's rules, then the meaning of the exit code; and how many failures are left. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from trainyard.api.recovery import MEANINGS, Action, Recovery, Rule
from trainyard.api.status import MOST, Restarts, TrainingJobStatus
from trainyard.domain.cause import Cause
from trainyard.domain.model import PodView


@dataclass(frozen=True, slots=True)
class Ruling:
    """What is to happen, and by which rule."""

    action: Action
    why: str = ""
    """Empty where there is no rule."""


def ruling(cause: Cause, recovery: Recovery) -> Ruling:
    """What follows from `cause`. The first rule that applies decides."""
    pod = cause.pod
    if pod is None:
        return Ruling(Action.RESTART)
    for number, rule in enumerate(recovery.rules):
        if _applies(rule, pod):
            return Ruling(rule.action, f"recovery.rules[{number}] says {rule.action}")
    if cause.failed and pod.exit:
        for meaning in MEANINGS:
            if pod.exit.code in meaning.codes:
                return Ruling(meaning.action, f"exit code {pod.exit.code}: {_lowered(meaning.text)}")
    return Ruling(Action.RESTART)


def used(restarts: Restarts, recovery: Recovery, now: datetime) -> int:
    """How many of these failures count towards `maxRestarts` now."""
    if recovery.window_seconds is not None:
        return len(_recent(restarts, recovery, now))
    # Whatever somebody has written into the status by hand.
    return max(0, restarts.failures - (restarts.forgiven or 0))


def charged(status: TrainingJobStatus, recovery: Recovery, cause: Cause, now: datetime) -> Restarts:
    """The restarts with one failure more, at this moment.

    One that comes further than all before shows that they were overcome: they are forgiven.
    """
    restarts, step = status.restarts, cause.step
    furthest = restarts.furthest_step
    further = step is not None and furthest is not None and step > furthest
    recent = [] if further else _recent(restarts, recovery, now)
    return restarts.model_copy(
        update={
            "failures": more(restarts.failures),
            "hangs": more(restarts.hangs or 0) if cause.hung else restarts.hangs,
            "forgiven": restarts.failures if further else restarts.forgiven,
            "furthest_step": furthest if step is None else max(step, furthest or 0),
            "at_same_step": None if step is None else more(in_a_row(status, cause)),
            "recent": None if recovery.window_seconds is None else [*recent, now],
        }
    )


def in_a_row(status: TrainingJobStatus, cause: Cause) -> int:
    """How many failures in a row were at the step of `cause`, without it."""
    last = status.last_failure
    same = cause.step is not None and last is not None and last.step == cause.step
    return (status.restarts.at_same_step or 0) if same else 0


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


def _applies(rule: Rule, pod: PodView) -> bool:
    said = [pod.exit, pod.taken_by, pod.trouble]
    reasons = {each.reason for each in said if each}
    messages = [each.message for each in said if each]
    code = pod.exit.code if pod.exit else None
    return (
        (rule.exit_codes is None or code in rule.exit_codes)
        and (rule.reasons is None or not reasons.isdisjoint(rule.reasons))
        and (rule.pod_conditions is None or not pod.conditions.isdisjoint(rule.pod_conditions))
        and (rule.message is None or any(contains(message, rule.message) for message in messages))
    )


def _recent(restarts: Restarts, recovery: Recovery, now: datetime) -> Sequence[datetime]:
    """The times of the failures that still count. One in the future, by a clock that was set back, does too."""
    window = timedelta(seconds=recovery.window_seconds or 0)
    return [time for time in restarts.recent or () if now - time < window][-recovery.max_restarts - 1 :]


def _lowered(sentence: str) -> str:
    return sentence[0].lower() + sentence[1:].rstrip(".")
