"""Split the time of a recovery into its parts."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from dev.benchmarks.recovery.milestones import Group

PARTS: Final = ("detect", "decide", "stop", "start", "import", "connect", "load", "step")


@dataclass(frozen=True, slots=True)
class Moments:
    """Monotonic times of what an observer saw first; None for what it never saw."""

    fault: float
    noticed: float | None = None
    """The first event about a pod that shows the fault."""
    decided: float | None = None
    """The first event about the job that reports a restart."""
    stopped: float | None = None
    """The exit of the last process of the old group."""


def split(moments: Moments, new: Group) -> dict[str, float | None]:
    """Return the seconds of each part; they add up to the whole recovery. A part without an observed end is None.

    Its time counts for the next part. If an effect is seen before its cause (a pod's event after the job's), the later part is 0.
    """
    noticed = moments.noticed
    if noticed is not None and moments.decided is not None:
        noticed = min(noticed, moments.decided)
    ends = {
        "detect": noticed,
        "decide": moments.decided,
        "stop": moments.stopped,
        "start": new.mark("started"),
        "import": new.mark("imported"),
        "connect": new.mark("connected"),
        "load": new.mark("loaded"),
    }
    last = new.first_step[1]
    parts: dict[str, float | None] = {}
    now = moments.fault
    for part in PARTS[:-1]:
        end = ends[part]
        if end is None or end > last:
            parts[part] = None
            continue
        parts[part] = max(end - now, 0.0)
        now = max(end, now)
    parts["step"] = last - now
    return parts


def steps_lost(old: Group, new: Group) -> int:
    """Return the number of repeated steps."""
    return max(0, old.last_step - new.first_step[0] + 1)


def shows_fault(event: Mapping[str, Any]) -> bool:
    """Return whether a watch event shows a fault of the pod: deleted, failed, a container terminated, or its node lost."""
    pod = event["object"]
    status = pod.get("status") or {}
    containers = status.get("containerStatuses") or []
    ended = any("terminated" in each.get("state", {}) or each.get("restartCount") for each in containers)
    ran = any(c["type"] == "Ready" and c["status"] != "True" for c in status.get("conditions") or []) and bool(
        containers
    )
    deleted = event["type"] == "DELETED" or "deletionTimestamp" in pod["metadata"]
    return deleted or ended or ran or status.get("phase") == "Failed"
