"""What a worker is to do, from what stands in its job's status, and nowhere else. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from trainyard.api.agent_protocol import AgentState, SyncRequest
from trainyard.api.internal_status import CoordinatedStop
from trainyard.api.recovery import HANG_CODE
from trainyard.api.status import ConditionType
from trainyard.coordinator.rejections import RefusedError, RejectionReason
from trainyard.domain.recovery.agent_reports import restarts_container
from trainyard.domain.state.snapshot import JobView, PodView
from trainyard.frameworks.environment import restart_environment
from trainyard.frameworks.worker_spec import Worker


@dataclass(frozen=True, slots=True)
class Assignment:
    """The attempt that a worker belongs to, and whether to begin it."""

    attempt: int
    run: bool
    """Whether all others are ready too."""
    environment: Mapping[str, str]
    """What its ranks are told anew: of where it was made some holds no more."""
    stop: CoordinatedStop | None = None
    """The end to which the attempt comes."""
    restart: bool = False
    """Whether the container is to start anew before the attempt begins."""
    hung: bool = False
    """Whether the attempt before has ended because a rank hung: where the others stood is of use then."""

    def is_news(self, call: SyncRequest) -> bool:
        """Whether the agent does something else."""
        if self.attempt != call.attempt:
            return self.attempt > call.attempt
        return (self.run and call.state is AgentState.WAITING) or (
            call.state is AgentState.RUNNING and self._stops_anew(call)
        )

    def _stops_anew(self, call: SyncRequest) -> bool:
        """Whether the agent is elsewhere on the way to the end. One that takes no part has nothing to hear of it."""
        leave, stop = call.leave, self.stop
        if leave is None or stop is None:
            return leave is not None and leave.asked
        return not leave.asked or (leave.passed is not None and stop.step not in {None, leave.at})


def assignment(pod: PodView, job: JobView) -> Assignment:
    """What the worker in this pod is to do. Raises RefusedError where that is nothing any more."""
    status = job.status
    if status.finished:
        raise RefusedError(RejectionReason.OVER, "the job has ended")
    if status.is_joining(pod.index, pod.attempt) and not status.holds(ConditionType.SUSPENDED):
        return Assignment(pod.attempt, run=False, environment={})
    if is_replaced(pod, job):
        raise RefusedError(
            RejectionReason.REPLACED, f"the job is at attempt {status.attempt}, to which pod {pod.name} does not belong"
        )
    if pod.attempt > status.created_in_attempt(pod.index):
        # The status was lost, restored from a backup say: it is about to be set right, and the worker has to ask again.
        raise RefusedError(
            RejectionReason.UNKNOWN_POD, f"the job is at attempt {status.attempt}, and pod {pod.name} of a later one"
        )
    if status.awaiting_rendezvous:
        last = status.last_failure
        hung = last is not None and last.attempt == status.attempt - 1 and last.exit_code == HANG_CODE
        return Assignment(status.attempt, run=False, environment={}, restart=restarts_container(status, pod), hung=hung)
    address = status.internal.rendezvous.address if status.internal.group and status.internal.rendezvous else None
    worker = Worker(job, pod.index, status.attempt, _group_size(job, pod), address)
    return Assignment(status.attempt, run=True, environment=restart_environment(worker), stop=status.stopping)


def _group_size(job: JobView, pod: PodView) -> int:
    """Return the number of workers of this pod's group. `spec.replicas` may differ from it until the next attempt."""
    return job.status.size or pod.workers or job.spec.replicas


def is_replaced(pod: PodView, job: JobView) -> bool:
    """Whether another pod is in its place, or will be, or none: the group has fewer workers now."""
    status = job.status
    replaced = pod.attempt < status.created_in_attempt(pod.index) or not status.includes(pod.index)
    return replaced or status.holds(ConditionType.SUSPENDED)
