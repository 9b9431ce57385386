"""End a job whose attempts fail by the same exception at the same place, before their first step. Pure.

The agent reports the cause of an exception (`trainyard_agent/failure_cause.py`). Exceptions of networks, devices, disks
and a lack of memory have no cause here. They are retried as long as the restart budget allows.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from trainyard.api.internal_status import MAX_REPEAT_PODS, RepeatedFailure
from trainyard.api.status import TrainingJobStatus
from trainyard.domain.recovery.root_cause import Cause
from trainyard.domain.state.termination import Exit

MIN_FAILURES, MIN_PODS = 3, 2
"""The proof: the first attempt, a restart of its processes, and a new pod."""
MIN_FAILURES_ON_ONE_NODE = 5
"""The proof where a node's file system may be the cause, and no other node was tried."""
MAX_START = timedelta(minutes=10)
"""An attempt that ran for longer may have made steps, where its program does not report them."""


@dataclass(frozen=True, slots=True)
class KnownCause:
    """What an exception comes from, and how to fix it."""

    fix: str = ""
    permanent: bool = True
    """Whether no restart can help, once that is proved."""
    by_node: bool = False
    """Whether a node's file system may be the cause."""
    certain: bool = False
    """Whether one failure proves that no restart can help."""


KNOWN_CAUSES = {
    "program": KnownCause(),
    "syntaxError": KnownCause("correct the program, or use an image with the Python version that it needs"),
    "missingModule": KnownCause("install the module in the image, or add its folder to PYTHONPATH", by_node=True),
    "missingLibrary": KnownCause(
        "install the library in the image; libcuda.so is there only for a container that requests a GPU", by_node=True
    ),
    "missingFile": KnownCause("correct the path, or mount the volume that holds the file", by_node=True),
    "noTemporaryFolder": KnownCause("mount an emptyDir at /tmp, or set TMPDIR to a folder that the user may write"),
    "noHome": KnownCause("set HOME to a folder that the user may write, for example an emptyDir"),
    "readOnlyFolder": KnownCause("mount a volume or an emptyDir at that path, or write elsewhere", permanent=False),
    "permissionDenied": KnownCause(
        "let the user of the container write there (securityContext.fsGroup or runAsUser), or write elsewhere",
        by_node=True,
    ),
    "noUserName": KnownCause("set the variables USER and HOME: the image has no name for the user of the container"),
    "portInUse": KnownCause(
        "use another port; a program that starts its ranks itself needs processesPerReplica: 1", by_node=True
    ),
    "startsOwnRanks": KnownCause(
        "the command was started once for each process of the worker (usually one for each GPU), and starts its ranks itself:"
        " set processesPerReplica: 1",
        certain=True,
    ),
    "unknownVariable": KnownCause(
        "each rank has RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT; with framework none, a worker has"
        " TRAINYARD_REPLICA_INDEX and TRAINYARD_REPLICAS"
    ),
    "noCuda": KnownCause("use an image whose torch is built with CUDA, or train on CPUs"),
    "noAccelerator": KnownCause(
        "request a GPU in resources.limits of the main container, and use an image with CUDA", permanent=False
    ),
    "nameNotResolved": KnownCause(
        "workers find each other by cluster DNS: leave dnsPolicy out, and let network policies allow DNS",
        permanent=False,
    ),
}
"""By the agent's name. A cause of a newer agent is none."""


def count_repeat(status: TrainingJobStatus, cause: Cause, now: datetime) -> RepeatedFailure | None:
    """Return the failures in a row by this exception, this one included; None where a restart may help."""
    end, pod = _permanent_exit(cause), cause.pod
    if end is None or pod is None or _may_have_made_steps(status, cause, now):
        return None
    before = status.internal.restart_budget.repeated
    if before is None or (before.exception, before.location) != _identity(end):
        exception, location = _identity(end)
        before = RepeatedFailure(exception=exception, location=location, failures=1)
    else:
        before = before.evolve(failures=before.failures + 1)
    pods = dict.fromkeys([*before.pods, pod.uid])
    nodes = dict.fromkeys([*before.nodes, *([pod.node] if pod.node else [])])
    return before.evolve(pods=[*pods][:MAX_REPEAT_PODS], nodes=[*nodes][:MAX_REPEAT_PODS])


def kept_repeat(status: TrainingJobStatus, cause: Cause, now: datetime) -> RepeatedFailure | None:
    """Return the stored failures after an end that is not counted: they go on where that attempt made no step."""
    return None if _may_have_made_steps(status, cause, now) else status.internal.restart_budget.repeated


def _may_have_made_steps(status: TrainingJobStatus, cause: Cause, now: datetime) -> bool:
    ran = now - status.running_time if status.running_time else timedelta()
    return cause.step is not None or ran >= MAX_START


def is_repeated(status: TrainingJobStatus, cause: Cause) -> bool:
    """Return whether the attempt before ended by the same exception: then a new pod shows whether its container is the cause."""
    end, before = _permanent_exit(cause), status.internal.restart_budget.repeated
    return end is not None and before is not None and (before.exception, before.location) == _identity(end)


def proof(repeated: RepeatedFailure | None, cause: Cause) -> str:
    """Return that no restart helps, and the fix; empty while that is not proved."""
    known = _known(cause)
    if known is not None and known.certain and not cause.victim:
        return f"no restart can fix this: {known.fix}"
    if repeated is None or known is None or repeated.failures < MIN_FAILURES or len(repeated.pods) < MIN_PODS:
        return ""
    if known.by_node and len(repeated.nodes) < 2 and repeated.failures < MIN_FAILURES_ON_ONE_NODE:
        return ""
    return (
        f"the same exception at the same place ended {repeated.failures} attempts in {len(repeated.pods)} pods before a step"
        f"{advice(cause)}"
    )


def advice(cause: Cause) -> str:
    """Return the fix of a known cause as the end of a sentence; empty where none is known."""
    known = _known(cause)
    return f"; {known.fix}" if known and known.fix else ""


def _known(cause: Cause) -> KnownCause | None:
    return KNOWN_CAUSES.get(cause.failed_exit.cause) if cause.failed_exit else None


def _permanent_exit(cause: Cause) -> Exit | None:
    known = _known(cause)
    return cause.failed_exit if known and known.permanent and not cause.victim else None


def _identity(end: Exit) -> tuple[str, str]:
    """Return the exception and its place. Python names a missing module of `python -m` without an exception."""
    return (end.exception or end.cause)[:1024], end.location[:1024]
