"""What a worker is to do, from what stands in its job's status, and nowhere else. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from trainyard.api.status import ConditionType
from trainyard.coordinator.refusals import RefusedError, Why
from trainyard.coordinator.reports import Call
from trainyard.domain.model import Doing, JobView, PodView
from trainyard.frameworks.environment import renewed
from trainyard.frameworks.worker import Worker


@dataclass(frozen=True, slots=True)
class Assignment:
    """The attempt that a worker belongs to, and whether to begin it."""

    attempt: int
    run: bool
    """Whether all others are ready too."""
    environment: Mapping[str, str]
    """What its ranks are told anew: of where it was made some holds no more."""

    def is_news(self, call: Call) -> bool:
        """Whether the agent does something else."""
        return self.attempt > call.attempt or (
            self.attempt == call.attempt and self.run and call.state is Doing.WAITING
        )


def assignment(pod: PodView, job: JobView) -> Assignment:
    """What the worker in this pod is to do. Raises RefusedError where that is nothing any more."""
    status = job.status
    if status.finished:
        raise RefusedError(Why.OVER, "the job has ended")
    if is_replaced(pod, job):
        raise RefusedError(
            Why.REPLACED, f"the job is at attempt {status.attempt}, to which pod {pod.name} does not belong"
        )
    if status.meeting:
        return Assignment(status.attempt, run=False, environment={})
    address = status.rendezvous.address if status.group and status.rendezvous else None
    worker = Worker(job, pod.index, status.attempt, address)
    return Assignment(status.attempt, run=True, environment=renewed(worker))


def is_replaced(pod: PodView, job: JobView) -> bool:
    """Whether another pod is in its place, or will be."""
    return pod.attempt != job.status.made_in(pod.index) or job.status.holds(ConditionType.SUSPENDED)
