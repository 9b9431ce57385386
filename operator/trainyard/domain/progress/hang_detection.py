"""Say what is known of hangs where the program does not report progress: that detection is limited, and that no rank works. Pure.

Where it does, the agents find the rank that hangs (`trainyard_agent.hang`), and this module has nothing to say.

It also follows a request for the stacks of all ranks: it is stored once. The agents receive the stored request
(`coordinator.assignments`), so that an operator that restarts neither loses nor repeats it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from trainyard.api.agent_protocol import AgentState
from trainyard.api.constants import ANNOTATION_DUMP_STACKS, LABEL_JOB_NAME
from trainyard.api.internal_status import StackDump
from trainyard.api.reasons import Reason
from trainyard.api.status import ConditionType as C, StatusChanges
from trainyard.domain.decisions import Clear, ConditionUpdate, Event, Remove, SetTrue
from trainyard.domain.state.snapshot import Snapshot
from trainyard.domain.state.worker_views import PodView, State
from trainyard.domain.wording import counted

FIRST_REPORT = timedelta(minutes=5)
"""How long a program may run before it reports for the first time: it imports, loads and compiles."""
ADVICE = "call trainyard_agent.progress(step) after each step to have hangs detected"


@dataclass(frozen=True, slots=True)
class HangObservation:
    """What is to be said of hangs now, and what becomes of a request for stacks."""

    updates: Sequence[ConditionUpdate] = ()
    waits: Sequence[float] = ()
    """The seconds until the program should have reported its progress."""
    changes: StatusChanges = field(default_factory=StatusChanges)
    """What a new request for stacks changes in the status."""
    events: Sequence[Event] = ()


def observe(snapshot: Snapshot, now: datetime) -> HangObservation:
    """Return what is to be said of hangs in an active job, and what becomes of a request for stacks."""
    updates, waits = _hangs(snapshot, now)
    changes, events = _stack_request(snapshot)
    return HangObservation(updates, waits, changes, events)


def _hangs(snapshot: Snapshot, now: datetime) -> tuple[list[ConditionUpdate], list[float]]:
    """Return the updates of HangSuspected and HangDetectionLimited, and what is waited for."""
    status = snapshot.job.status
    if status.progress is not None:
        why = "the program reports progress"
        detected = Clear(C.HANG_DETECTION_LIMITED, Reason.PROGRESS_REPORTED, f"{why}: hangs are detected")
        # Agents report idle ranks only until these report progress in the current attempt: the stored one may be of an earlier attempt.
        suspected = _suspected(snapshot)
        if not isinstance(suspected, SetTrue):
            suspected = Clear(C.HANG_SUSPECTED, Reason.PROGRESS_REPORTED, why)
        return [detected, suspected], []
    # Without agents, or with a limit of 0, the user has chosen to look for none.
    if not snapshot.expects_agents or snapshot.job.spec.recovery.hang_timeout_seconds == 0:
        return [Remove(C.HANG_DETECTION_LIMITED), Remove(C.HANG_SUSPECTED)], []
    if not status.running_time:
        return [], []
    left = (status.running_time + FIRST_REPORT - now).total_seconds()
    if left > 0:
        return [_suspected(snapshot)], [left]
    limited = f"the program has reported no progress for {FIRST_REPORT.seconds // 60} minutes: {ADVICE}"
    return [SetTrue(C.HANG_DETECTION_LIMITED, Reason.PROGRESS_NOT_REPORTED, limited), _suspected(snapshot)], []


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


def _stack_request(snapshot: Snapshot) -> tuple[StatusChanges, list[Event]]:
    """Return what a new request changes, and its event; nothing while no worker runs, since a request is for ranks that exist."""
    job, stored = snapshot.job, snapshot.job.status.internal.stack_dump
    if not job.stack_request or (stored is not None and stored.request == job.stack_request):
        return {}, []
    if not any(pod.state is State.RUNNING for pod in snapshot.current):
        return {}, []
    changes: StatusChanges = {"stack_dump": StackDump(request=job.stack_request, attempt=job.status.attempt)}
    if not snapshot.expects_agents:
        note = "no stacks: trainyard-agent does not run in the workers; see the condition AgentInjected"
        return changes, [Event("Warning", Reason.STACKS_REQUESTED, note)]
    logs = f"kubectl -n {job.namespace} logs -l {LABEL_JOB_NAME}={job.name} --prefix --tail=-1"
    note = f"the stacks of all ranks are written to the logs of the pods; read them with: {logs}"
    return changes, [Event("Normal", Reason.STACKS_REQUESTED, note)]
