"""The laws of what a job's time went into."""

from trainyard.api.status import TrainingJobStatus


def miscounted(before: TrainingJobStatus, after: TrainingJobStatus, furthest: int) -> str | None:
    """What is wrong with the goodput of the next status."""
    if (goodput := after.goodput) is None:
        return "the goodput is gone" if before.goodput else None
    parts = [goodput.productive_seconds, *goodput.lost_seconds.model_dump().values()]
    if abs(sum(parts) - goodput.accounted_seconds) > 1:
        return f"the parts of {goodput} are not all of its time"
    if goodput.productive_seconds > furthest:
        return f"{goodput} has more steps in it than the {furthest} that there are"
    old = before.goodput or goodput
    if goodput.accounted_seconds < old.accounted_seconds or goodput.productive_seconds < old.productive_seconds:
        return f"the goodput goes back from {old} to {goodput}"
    return None
