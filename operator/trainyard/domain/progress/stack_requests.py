"""Follow a request for the stacks of all ranks: store it once, and say where the stacks are. Pure.

The agents receive the stored request (`coordinator.assignments`), so that an operator that restarts neither loses nor repeats it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from trainyard.api.constants import LABEL_JOB_NAME
from trainyard.api.internal_status import StackDump
from trainyard.api.reasons import Reason
from trainyard.api.status import StatusChanges
from trainyard.domain.decisions import Event
from trainyard.domain.state.snapshot import Snapshot
from trainyard.domain.state.worker_views import State


@dataclass(frozen=True, slots=True)
class StackRequest:
    """What becomes of a request."""

    changes: StatusChanges = field(default_factory=StatusChanges)
    events: Sequence[Event] = ()


def follow(snapshot: Snapshot) -> StackRequest:
    """Return what a new request changes; nothing while no worker runs, since a request is for ranks that exist."""
    job, stored = snapshot.job, snapshot.job.status.internal.stack_dump
    if not job.stack_request or (stored is not None and stored.request == job.stack_request):
        return StackRequest()
    if not any(pod.state is State.RUNNING for pod in snapshot.current):
        return StackRequest()
    changes: StatusChanges = {"stack_dump": StackDump(request=job.stack_request, attempt=job.status.attempt)}
    if not snapshot.expects_agents:
        note = "no stacks: trainyard-agent does not run in the workers; see the condition AgentInjected"
        return StackRequest(changes, [Event("Warning", Reason.STACKS_REQUESTED, note)])
    logs = f"kubectl -n {job.namespace} logs -l {LABEL_JOB_NAME}={job.name} --prefix --tail=-1"
    note = f"the stacks of all ranks are written to the logs of the pods; read them with: {logs}"
    return StackRequest(changes, [Event("Normal", Reason.STACKS_REQUESTED, note)])
