"""Where the time of a recovery goes. Pure: time-stamps in, seconds out."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from dev.benchmarks.recovery.milestones import Group

PARTS: Final = ("detect", "decide", "stop", "start", "import", "connect", "load", "step")


@dataclass(frozen=True, slots=True)
class Moments:
    """When it was first seen from outside that something happened; None where that was never seen."""

    fault: float
    noticed: float | None = None
    """The first event about a pod that tells of the fault."""
    decided: float | None = None
    """The first event about the job that tells of a restart."""
    stopped: float | None = None
    """The end of the last process of the old group."""


def split(moments: Moments, new: Group) -> dict[str, float | None]:
    """Seconds of each part, which add up to the whole. What has no end of its own is None and counts to the part behind it.

    Where one thing is seen before the one that leads to it (a pod's event after the job's), the later part gets nothing.
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
    """Steps that were done and had to be done again."""
    return max(0, old.last_step - new.first_step[0] + 1)


def tells_of_fault(event: Mapping[str, Any]) -> bool:
    """Whether a watch's event about a pod shows that the pod is not well: deleted, failed, a container ended, its node lost."""
    pod = event["object"]
    status = pod.get("status") or {}
    containers = status.get("containerStatuses") or []
    ended = any("terminated" in each.get("state", {}) or each.get("restartCount") for each in containers)
    ran = any(c["type"] == "Ready" and c["status"] != "True" for c in status.get("conditions") or []) and bool(
        containers
    )
    deleted = event["type"] == "DELETED" or "deletionTimestamp" in pod["metadata"]
    return deleted or ended or ran or status.get("phase") == "Failed"
