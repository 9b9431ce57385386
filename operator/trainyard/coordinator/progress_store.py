"""Keep the last progress report of each worker, by job. In memory only: agents report again within a minute."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from trainyard.api.agent_protocol import RankReport, Report, Transport
from trainyard.api.roles import is_worker, role_and_number
from trainyard.coordinator.assignments import is_replaced
from trainyard.coordinator.rejections import RefusedError, RejectionReason
from trainyard.coordinator.tokens import PodIdentity
from trainyard.domain.state.snapshot import JobView
from trainyard.domain.state.worker_views import FormedGroups, Network, PodView, RankProgress, WorkerReport

MIN_REPORT_INTERVAL_SECONDS, MAX_REPORT_INTERVAL_SECONDS = 5.0, 60.0
"""Between two reports of one worker."""
MAX_REPORTS_PER_SECOND = 200.0
"""Of all workers together, as far as the maximum interval allows."""
MIN_STATUS_INTERVAL_SECONDS = 10.0
"""Between two statuses of a job that differ only in progress."""
MAX_STATUSES_PER_SECOND = 5.0
"""Of all jobs together, as far as the maximum interval allows."""
MAX_STATUS_INTERVAL_SECONDS = 300.0


@dataclass(slots=True)
class ProgressStore:
    """The last report of each worker, and the interval between reports."""

    find: Callable[[PodIdentity], tuple[PodView, JobView] | None]
    """Returns the pod and its job from the caches, or None. Raises RefusedError where the caches may be behind."""
    on_change: Callable[[str, float], object]
    """Called with a job's UID and the seconds after which to reconcile it."""
    now: Callable[[], datetime]
    """The time, to the fraction of a second."""
    workers: int = field(default=0, init=False)
    """The number of workers that have reported. Each report asks for it, so they are not counted again."""
    _reports: dict[str, dict[int, WorkerReport]] = field(default_factory=dict, init=False)

    def accept(self, sender: PodIdentity, report: Report) -> float:
        """Store a pod's report of its own ranks. Return the seconds until its next report. Raises RefusedError."""
        pod, job = self.resolve(sender)
        if is_replaced(pod, job):
            raise RefusedError(
                RejectionReason.STALE_ATTEMPT, f"pod {pod.name} belongs to an earlier attempt and is replaced"
            )
        if report.attempt != job.status.attempt or job.status.finished:
            now = "finished" if job.status.finished else f"at attempt {job.status.attempt}"
            raise RefusedError(
                RejectionReason.STALE_ATTEMPT, f"the report is of attempt {report.attempt}, and the job is {now}"
            )
        own, first = _ranks_of(job, pod)
        if foreign := next((rank for rank in report.ranks if int(rank) not in own), None):
            raise RefusedError(
                RejectionReason.FOREIGN_RANK,
                f"rank {foreign} is not in this pod, which has ranks {own.start} to {own.stop - 1}",
            )
        workers = self._reports.setdefault(job.uid, {})
        ranks = tuple(_rank_progress(int(rank) + first, progress) for rank, progress in report.ranks.items())
        groups = FormedGroups(report.groups.size, report.groups.leaders) if report.groups else None
        taken = report.network
        network = Network(taken.transport is Transport.SOCKETS, taken.name) if taken and pod.index == 0 else None
        programs, compared = report.torch_processes, report.preflight_seconds or 0.0
        received = WorkerReport(report.attempt, pod.index, ranks, self.now(), groups, network, programs, compared)
        self.workers += pod.index not in workers
        if workers.get(pod.index) != received:
            workers[pod.index] = received
            self.on_change(job.uid, self._status_interval())
        return min(MAX_REPORT_INTERVAL_SECONDS, max(MIN_REPORT_INTERVAL_SECONDS, self.workers / MAX_REPORTS_PER_SECOND))

    def resolve(self, sender: PodIdentity) -> tuple[PodView, JobView]:
        """Return the sender's pod and its job. Raises RefusedError."""
        found = self.find(sender)
        if found is None:
            raise RefusedError(
                RejectionReason.UNKNOWN_POD, f"pod {sender.name} in {sender.namespace} is not a worker of a TrainingJob"
            )
        return found

    def of(self, uid: str) -> Sequence[WorkerReport]:
        """Return the last reports of the job's workers, of any attempt."""
        return [*self._reports.get(uid, {}).values()]

    def forget(self, uid: str) -> None:
        """Forget a job that is deleted or finished."""
        self.workers -= len(self._reports.pop(uid, {}))

    def _status_interval(self) -> float:
        """Return the seconds between two statuses of a job, longer the more jobs report."""
        fair = len(self._reports) / MAX_STATUSES_PER_SECOND
        return min(MAX_STATUS_INTERVAL_SECONDS, max(MIN_STATUS_INTERVAL_SECONDS, fair))


def _ranks_of(job: JobView, pod: PodView) -> tuple[range, int]:
    """Return the ranks of a pod as its agent numbers them, and what is to be added for a number of the whole group.

    A member of another role than the workers has one process, whose number is that of the member.
    """
    if is_worker(pod.index):
        return job.ranks_of(pod.index), 0
    _, number = role_and_number(pod.index)
    return range(number, number + 1), pod.index - number


def _rank_progress(rank: int, report: RankReport) -> RankProgress:
    return RankProgress(
        rank,
        report.step,
        report.phase,
        report.total,
        report.loss,
        report.seconds,
        tuple(report.stack or ()),
        blocked=report.blocked or "",
        compute_seconds=report.own,
        first=report.first,
        measured=report.measured.model_dump(exclude_none=True) if report.measured else {},
    )
