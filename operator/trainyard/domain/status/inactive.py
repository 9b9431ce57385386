"""Messages of conditions that another condition explains: each says what does not happen, and what the job does. Pure."""

from collections.abc import Mapping

from trainyard.api.status import ConditionType as C

INACTIVE: Mapping[C, str] = {
    C.SCHEDULED: "no pod is scheduled",
    C.RUNNING: "no worker runs",
    C.RESTARTING: "no restart is in progress",
    C.RESIZING: "no worker joins",
    C.SCALING_LIMITED: "no size is limited",
    C.STRAGGLING: "no rank is slow",
    C.HANG_SUSPECTED: "no rank hangs",
    C.HANG_DETECTION_LIMITED: "no hang is looked for",
    C.FAILURE_HIDDEN: "no rank has failed",
    C.GROUP_SPLIT: "no group is formed",
    C.RDMA_UNUSED: "no network is in use",
    C.QUEUED: "no queue holds the job",
    C.STALLED: "nothing blocks the job",
}
HAS_FAILED = "the job has failed: see the condition Failed"
HAS_FINISHED = "the job has finished"
IS_QUEUED = "the job waits in its queue"
IS_SUSPENDED = "the job is suspended"
RESTARTS = "the group restarts"


def inactive(kind: C, because: str) -> str:
    """Return the message of a condition that another condition explains. `because`: what the job does."""
    return f"{INACTIVE[kind]}: {because}"
