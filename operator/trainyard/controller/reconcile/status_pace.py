"""Limit how often a status is written. Decides nothing else.

A change of phase, condition or attempt is written at once, within a budget. Changed counts of pods and successes of
workers are written once a second; counts less often while many jobs start: their pods come first.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from trainyard.api.status import TrainingJobStatus
from trainyard.domain.state.snapshot import JobView
from trainyard.domain.status.report import is_news

COUNTS_PERIOD_SECONDS = 1.0
"""Otherwise a job of 500 workers would be written, and sent to all watchers, for each worker that becomes ready."""
COUNTS_PERIOD_PER_JOB_SECONDS = 0.05
"""For each job with unwritten counts. Up to a hundred of them together cause twenty writes a second; more of them wait
`MAX_COUNTS_PERIOD_SECONDS` each.
"""
MAX_COUNTS_PERIOD_SECONDS = 20.0
"""The longest wait of changed counts, however many jobs start. Most of a thousand single-worker jobs run by then."""
WRITE_BURST = 60
"""Writes of one job without a delay: more than a recovering job needs in its worst minute."""
WRITE_INTERVAL_SECONDS = 0.5
"""Between two writes of a job that has used up its burst. A program that fails after each start, or a stolen worker
token, could otherwise keep the API server busy for all.
"""


@dataclass(slots=True)
class StatusPace:
    """When this process last wrote or acted on each job, which jobs wait, and whether any is being acted on now."""

    clock: Callable[[], float]
    _written_at: dict[str, float] = field(default_factory=dict, init=False)
    _burst_full_at: dict[str, float] = field(default_factory=dict, init=False)
    """The time at which the burst of each job is full again, at one write per `WRITE_INTERVAL_SECONDS`."""
    _waiting: set[str] = field(default_factory=set, init=False)
    _acting: int = field(default=0, init=False)

    @property
    def busy(self) -> bool:
        """Whether pods of any job are being created or deleted."""
        return self._acting > 0

    def wait(self, job: JobView, status: TrainingJobStatus) -> float:
        """Return the seconds after which to ask again whether to write `status`; 0: it may be written now."""
        self._waiting.discard(job.uid)
        if is_news(job, status):
            return max(0.0, self._burst_full_at.get(job.uid, 0.0) - WRITE_BURST * WRITE_INTERVAL_SECONDS - self.clock())
        busy = min(MAX_COUNTS_PERIOD_SECONDS, COUNTS_PERIOD_PER_JOB_SECONDS * len(self._waiting))
        # Once a worker's success is stored, its pod may be deleted: that does not wait for other jobs.
        succeeded = status.internal.succeeded != job.status.internal.succeeded
        period = COUNTS_PERIOD_SECONDS if succeeded else max(COUNTS_PERIOD_SECONDS, busy)
        left = self._written_at.get(job.uid, float("-inf")) + period - self.clock()
        if left <= 0:
            return 0.0
        self._waiting.add(job.uid)
        return left

    @contextmanager
    def acting(self) -> Iterator[None]:
        """Mark that pods are created or deleted inside the context."""
        self._acting += 1
        try:
            yield
        finally:
            self._acting -= 1

    def mark_written(self, uid: str) -> None:
        """Record that the job's status has just been written."""
        now = self._written_at[uid] = self.clock()
        self._burst_full_at[uid] = max(now, self._burst_full_at.get(uid, now)) + WRITE_INTERVAL_SECONDS

    def mark_acted(self, uid: str) -> None:
        """Record that all actions were carried out; the caches will show them soon. While they do not, other jobs wait
        longer.
        """
        self.mark_written(uid)
        self._waiting.add(uid)

    def mark_clean(self, uid: str) -> None:
        """Record that the job's stored status is up to date."""
        self._waiting.discard(uid)

    def forget(self, uid: str) -> None:
        """Forget a job that is gone."""
        self._written_at.pop(uid, None)
        self._burst_full_at.pop(uid, None)
        self._waiting.discard(uid)
