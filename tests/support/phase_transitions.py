"""The legal transitions of a job's status: one table for the phase and one rule for the attempt. Pure; decides nothing.

Every verdict keeps to it, in whatever order faults, users and operators that die come upon the job. The simulation
holds each status that is written against it.
"""

from collections.abc import Mapping
from types import MappingProxyType

from trainyard.api.status import ConditionType as C, Phase, TrainingJobStatus

LEGAL: Mapping[Phase, frozenset[Phase]] = MappingProxyType(
    {
        Phase.PENDING: frozenset(
            {
                Phase.RUNNING,  # all workers of the attempt run or have succeeded
                Phase.RESTARTING,  # one failed or was taken away before all ran, or `replicas` was changed
                Phase.SUSPENDED,  # the user set `lifecycle.suspend`
                Phase.QUEUED,  # the queue has not admitted the job, or takes its quota back
                Phase.COMPLETE,  # short work: the workers succeeded before all of them were seen to run
                Phase.FAILED,  # a deadline, `maxRestarts`, or an invalid pod template
            }
        ),
        Phase.RUNNING: frozenset(
            {
                Phase.RESTARTING,  # a worker failed or was taken away, or `replicas` was changed
                Phase.SUSPENDED,  # the user set `lifecycle.suspend`
                Phase.QUEUED,  # the queue has not admitted the job, or takes its quota back
                Phase.COMPLETE,  # the workers succeeded
                Phase.FAILED,  # a deadline, or `maxRestarts`
            }
        ),
        Phase.RESTARTING: frozenset(
            {
                Phase.RUNNING,  # all workers of the new attempt run
                Phase.SUSPENDED,  # the user set `lifecycle.suspend`
                Phase.QUEUED,  # the queue has not admitted the job, or takes its quota back
                Phase.COMPLETE,  # short work, as above
                Phase.FAILED,  # a deadline, `maxRestarts`, or an invalid pod template
            }
        ),
        Phase.QUEUED: frozenset(
            {
                Phase.PENDING,  # the queue has admitted the job
                Phase.SUSPENDED,  # the user set `lifecycle.suspend`
            }
        ),
        Phase.SUSPENDED: frozenset(
            {
                Phase.PENDING,  # the suspension was taken back
                Phase.QUEUED,  # the same, of a job with a queue
            }
        ),
        # A finished job stays finished.
        Phase.COMPLETE: frozenset(),
        Phase.FAILED: frozenset(),
    }
)


def objection(before: TrainingJobStatus, after: TrainingJobStatus) -> str | None:
    """Why a status may not go from `before` to `after`, or None where it may."""
    if after.phase not in {before.phase, *LEGAL[before.phase]}:
        return f"the phase goes from {before.phase} to {after.phase}"
    if before.finished and _end(before) != _end(after):
        return "a job that has finished moves on"
    if after.finished is not (after.phase in {Phase.COMPLETE, Phase.FAILED}):
        return f"the phase {after.phase} contradicts the conditions"
    return _attempt(before, after) or _counters(before, after)


def _attempt(before: TrainingJobStatus, after: TrainingJobStatus) -> str | None:
    """The attempt never decreases. It grows by one, and only where the group restarts or stops."""
    change = f"the attempt goes from {before.attempt} to {after.attempt}"
    lost = before.start_time is None and before.attempt == 1
    if after.attempt == before.attempt or (lost and after.attempt > 1):
        # A status that was lost takes its attempt from the pods (`verdict.adopt`).
        return (
            None if after.internal.launched_attempt <= after.attempt else "an attempt is launched before it is decided"
        )
    if after.attempt != before.attempt + 1:
        return change
    ends = {Phase.RESTARTING, Phase.SUSPENDED, Phase.QUEUED}
    return None if after.phase in ends else f"{change} while the phase is {after.phase}"


def _counters(before: TrainingJobStatus, after: TrainingJobStatus) -> str | None:
    """An attempt that ends is counted once, under one cause; nothing else is counted, and nothing is taken back."""
    old, new = before.restarts, after.restarts
    steps = sorted(
        (new.failures - old.failures, new.disruptions - old.disruptions, new.resizes - old.resizes), reverse=True
    )
    ends = after.attempt > before.attempt or after.finished is not before.finished
    if steps in ([0, 0, 0], *([[1, 0, 0]] if ends else [])):
        return None
    return f"restarts go from {old.dump()} to {new.dump()}"


def _end(status: TrainingJobStatus) -> tuple[object, ...]:
    answers = tuple((c.type, c.status, c.reason) for c in status.conditions if c.type in {C.COMPLETE, C.FAILED})
    return status.phase, status.attempt, status.completion_time, status.restarts, answers
