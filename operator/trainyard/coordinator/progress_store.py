"""What the agents have told last, by job. In memory alone: what is lost with it is told again within a minute."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from trainyard.api.agent_protocol import RankReport, Report
from trainyard.coordinator.assignments import is_replaced
from trainyard.coordinator.rejections import RefusedError, Why
from trainyard.coordinator.tokens import PodIdentity
from trainyard.domain.state.rank_layout import processes
from trainyard.domain.state.snapshot import JobView, PodView, RankProgress, WorkerReport

SHORTEST_SECONDS, LONGEST_SECONDS = 5.0, 60.0
"""Between two reports of a worker."""
REPORTS_A_SECOND = 200.0
"""Of all workers together, as far as the longest pause allows."""
STATUS_SECONDS = 10.0
"""Between two statuses of a job that differ in its progress alone."""
STATUSES_A_SECOND = 5.0
"""Of all jobs together, as far as the longest wait allows."""
LONGEST_WAIT = 300.0


@dataclass(slots=True)
class Board:
    """The last report of each worker, and how often to report."""

    find: Callable[[PodIdentity], tuple[PodView, JobView] | None]
    """The pod, and the job that it belongs to, as far as the caches know them. Raises RefusedError where they may be behind."""
    news: Callable[[str, float], object]
    """Called with a job's UID and the seconds after which to look at it."""
    now: Callable[[], datetime]
    """The time, to the fraction of a second."""
    _reports: dict[str, dict[int, WorkerReport]] = field(default_factory=dict, init=False)

    def accept(self, sender: PodIdentity, report: Report) -> float:
        """Keep what a pod says of its own ranks. Returns after how many seconds to report again. Raises RefusedError."""
        pod, job = self.known(sender)
        if is_replaced(pod, job):
            raise RefusedError(Why.STALE_ATTEMPT, f"pod {pod.name} is of an earlier attempt, and not used any more")
        if report.attempt != job.status.attempt or job.status.finished:
            now = "over" if job.status.finished else f"at attempt {job.status.attempt}"
            raise RefusedError(Why.STALE_ATTEMPT, f"this is about attempt {report.attempt}, and the job is {now}")
        each = processes(job.spec)
        own = range(pod.index * each, (pod.index + 1) * each)
        if stranger := next((rank for rank in report.ranks if int(rank) not in own), None):
            raise RefusedError(
                Why.FOREIGN_RANK, f"rank {stranger} is not in this pod, which has {own.start} to {own.stop - 1}"
            )
        workers = self._reports.setdefault(job.uid, {})
        ranks = tuple(_rank(int(rank), said) for rank, said in report.ranks.items())
        told = WorkerReport(report.attempt, pod.index, ranks, self.now())
        if workers.get(pod.index) != told:
            workers[pod.index] = told
            self.news(job.uid, min(LONGEST_WAIT, max(STATUS_SECONDS, len(self._reports) / STATUSES_A_SECOND)))
        return min(LONGEST_SECONDS, max(SHORTEST_SECONDS, self.workers / REPORTS_A_SECOND))

    def known(self, sender: PodIdentity) -> tuple[PodView, JobView]:
        """The pod of the sender, and its job. Raises RefusedError."""
        found = self.find(sender)
        if found is None:
            raise RefusedError(
                Why.UNKNOWN_POD, f"pod {sender.name} in {sender.namespace} is no worker of a TrainingJob"
            )
        return found

    def of(self, uid: str) -> Sequence[WorkerReport]:
        """What the workers of this job have told last, of whichever attempt."""
        return [*self._reports.get(uid, {}).values()]

    def forget(self, uid: str) -> None:
        """The job is gone, or has ended."""
        self._reports.pop(uid, None)

    @property
    def workers(self) -> int:
        """Those of which something is known."""
        return sum(map(len, self._reports.values()))


def _rank(rank: int, said: RankReport) -> RankProgress:
    stack = tuple(said.stack or ())
    return RankProgress(
        rank,
        said.step,
        said.phase,
        said.total,
        said.loss,
        said.seconds,
        stack,
        blocked=said.blocked or "",
        own_seconds=said.own,
        first=said.first,
        measured=said.measured.model_dump(exclude_none=True) if said.measured else {},
    )
