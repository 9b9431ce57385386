"""What a worker is to do, from what stands in its job's status, and nowhere else. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trainyard.api.agent_protocol import AgentState, SyncRequest
from trainyard.api.internal_status import CoordinatedStop
from trainyard.api.recovery import HANG_CODE
from trainyard.coordinator.rejections import RefusedError, RejectionReason
from trainyard.domain.recovery.agent_reports import restarts_container
from trainyard.domain.state.snapshot import JobView
from trainyard.domain.state.worker_views import PodView
from trainyard.frameworks.environment import restart_environment
from trainyard.frameworks.worker_spec import Worker


@dataclass(frozen=True, slots=True)
class Assignment:
    """The attempt that a worker belongs to, and whether to start it."""

    attempt: int
    run: bool
    """Whether all workers are ready."""
    environment: Mapping[str, str]
    """Variables that its ranks need in this attempt, because those of the pod may be outdated."""
    stop: CoordinatedStop | None = None
    """The coordinated stop of the attempt."""
    restart: bool = False
    """Whether the container must restart before the attempt starts."""
    hung: bool = False
    """Whether the previous attempt failed because a rank hung; the agent then reports stack traces."""
    stacks: str = ""
    """The request for the stacks of its ranks; empty where there is none."""

    def is_news(self, call: SyncRequest) -> bool:
        """Return whether the assignment differs from what the agent does."""
        if self.attempt != call.attempt:
            return self.attempt > call.attempt
        return (self.run and call.state is AgentState.WAITING) or (
            call.state is AgentState.RUNNING and (self._must_change_stop(call) or self._must_write_stacks(call))
        )

    def _must_write_stacks(self, call: SyncRequest) -> bool:
        """Return whether the agent has yet to meet the request for stacks. One that knows no such requests receives none."""
        return call.stacks is not None and self.stacks not in {"", call.stacks}

    def _must_change_stop(self, call: SyncRequest) -> bool:
        """Return whether the agent is in another state of the coordinated stop. An agent without a stop slot receives none."""
        leave, stop = call.leave, self.stop
        if leave is None or stop is None:
            return leave is not None and leave.asked
        return not leave.asked or (leave.passed is not None and stop.step not in {None, leave.at})


def assignment(pod: PodView, job: JobView, pods: Sequence[PodView] = ()) -> Assignment:
    """Return what the worker in this pod must do. Raises RefusedError if it no longer belongs to the job.

    `pods`: those of the job, for an agent that waits. The status says when all workers run; from then on their addresses are known, and
    stay the same until the attempt ends.
    """
    status = job.status
    if status.finished:
        raise RefusedError(RejectionReason.OVER, "the job has ended")
    if status.is_joining(pod.index, pod.attempt) and not status.at_rest:
        return Assignment(pod.attempt, run=False, environment={})
    if is_replaced(pod, job):
        raise RefusedError(
            RejectionReason.REPLACED, f"the job is at attempt {status.attempt}, to which pod {pod.name} does not belong"
        )
    if pod.attempt > status.created_in_attempt(pod.index):
        # The status was lost, for example by a restore from a backup. The next reconcile corrects it; the agent retries.
        raise RefusedError(
            RejectionReason.UNKNOWN_POD, f"the job is at attempt {status.attempt}, and pod {pod.name} of a later one"
        )
    if status.awaiting_rendezvous:
        last = status.last_failure
        hung = last is not None and last.attempt == status.attempt - 1 and last.exit_code == HANG_CODE
        return Assignment(status.attempt, run=False, environment={}, restart=restarts_container(status, pod), hung=hung)
    size, framework = _group_size(job, pod), job.spec.framework
    # The order of ranks is stored together with the time at which all workers run.
    if (framework.starts_together or pod.ranks_ordered) and status.running_time is None:
        return Assignment(status.attempt, run=False, environment={})
    addresses = _addresses(job, pods, size) if framework.needs_addresses else ()
    if framework.needs_addresses and not addresses:
        return Assignment(status.attempt, run=False, environment={})
    address = status.internal.rendezvous.address if status.internal.group and status.internal.rendezvous else None
    worker = Worker(job.of_member(pod.index), pod.index, status.attempt, size, address, addresses)
    return Assignment(
        status.attempt,
        run=True,
        environment=restart_environment(worker),
        stop=status.stopping,
        stacks=status.stacks_requested,
    )


def _addresses(job: JobView, pods: Sequence[PodView], size: int) -> Sequence[str]:
    """Return the addresses of all workers of the current attempt, by index; nothing where one of them is not known."""
    known = {pod.index: pod.ip for pod in pods if job.status.has(pod.index, pod.attempt, pod.recreated)}
    addresses = [known.get(index, "") for index in range(size)]
    return addresses if all(addresses) else ()


def _group_size(job: JobView, pod: PodView) -> int:
    """Return the number of workers of this pod's group. `spec.replicas` may differ from it until the next attempt."""
    return job.status.size or pod.workers or job.spec.replicas


def is_replaced(pod: PodView, job: JobView) -> bool:
    """Whether another pod is in its place, or will be, or none: the group has fewer workers now."""
    status = job.status
    newest = (status.created_in_attempt(pod.index), status.recreated(pod.index))
    replaced = (pod.attempt, pod.recreated) < newest or not status.includes(pod.index)
    return replaced or status.at_rest
