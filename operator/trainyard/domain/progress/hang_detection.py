"""Say what is known of hangs where the program does not report progress: that detection is limited, and that no rank works. Pure.

Where it does, the agents find the rank that hangs (`trainyard_agent.hang`), and this module has nothing to say.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from trainyard.api.agent_protocol import AgentState
from trainyard.api.constants import ANNOTATION_DUMP_STACKS
from trainyard.api.reasons import Reason
from trainyard.api.status import ConditionType as C
from trainyard.domain.decisions import Clear, ConditionUpdate, SetTrue
from trainyard.domain.state.snapshot import Snapshot
from trainyard.domain.state.worker_views import PodView, State
from trainyard.domain.wording import counted

FIRST_REPORT = timedelta(minutes=5)
"""How long a program may run before it reports for the first time: it imports, loads and compiles."""
ADVICE = "call trainyard_agent.progress(step) after each step to have hangs detected"


@dataclass(frozen=True, slots=True)
class HangObservation:
    """What is to be said of hangs now."""

    updates: Sequence[ConditionUpdate] = ()
    waits: Sequence[float] = ()
    """The seconds until the program should have reported its progress."""


def observe(snapshot: Snapshot, now: datetime) -> HangObservation:
    """Return the updates of HangSuspected and HangDetectionLimited for an active job."""
    status = snapshot.job.status
    if status.progress is not None:
        why = "the program reports progress"
        detected = Clear(C.HANG_DETECTION_LIMITED, Reason.PROGRESS_REPORTED, f"{why}: hangs are detected")
        # Agents report idle ranks only until these report progress in the current attempt: the stored one may be of an earlier attempt.
        suspected = _suspected(snapshot)
        if not isinstance(suspected, SetTrue):
            suspected = Clear(C.HANG_SUSPECTED, Reason.PROGRESS_REPORTED, why)
        return HangObservation([detected, suspected])
    # Without agents, or with a limit of 0, the user has chosen to look for none.
    if not snapshot.expects_agents or snapshot.job.spec.recovery.hang_timeout_seconds == 0 or not status.running_time:
        return HangObservation()
    left = (status.running_time + FIRST_REPORT - now).total_seconds()
    if left > 0:
        return HangObservation([_suspected(snapshot)], [left])
    limited = f"the program has reported no progress for {FIRST_REPORT.seconds // 60} minutes: {ADVICE}"
    return HangObservation(
        [SetTrue(C.HANG_DETECTION_LIMITED, Reason.PROGRESS_NOT_REPORTED, limited), _suspected(snapshot)]
    )


def _suspected(snapshot: Snapshot) -> ConditionUpdate:
    """Return the update of HangSuspected: whether no rank of any worker does anything."""
    working = [pod for pod in snapshot.current if pod.state is State.RUNNING]
    if not working or not all(_is_idle(snapshot, pod) for pod in working):
        return Clear(C.HANG_SUSPECTED, Reason.RANKS_ACTIVE, "some ranks work")
    return SetTrue(
        C.HANG_SUSPECTED,
        Reason.RANKS_IDLE,
        f"no rank of {counted(len(working), 'worker')} uses its CPU, its disk or the network: they may wait for each other. "
        f"The logs of the pods have their stacks; the annotation {ANNOTATION_DUMP_STACKS} asks for new ones",
    )


def _is_idle(snapshot: Snapshot, pod: PodView) -> bool:
    agent = snapshot.agents.get(pod.uid)
    runs = agent is not None and agent.connected and agent.state is AgentState.RUNNING
    return agent is not None and runs and agent.idle and agent.attempt == snapshot.job.status.attempt
