"""How often a status is written. A job's moves at once; what only counts pods no more than once a second. Decides nothing else."""

from collections.abc import Callable
from dataclasses import dataclass, field

from trainyard.api.status import TrainingJobStatus
from trainyard.domain.model import JobView
from trainyard.domain.report import is_news

PERIOD = 1.0
"""Seconds. A job of 500 workers would otherwise be written for each of them that gets ready, and each time be sent to all watchers."""


@dataclass(slots=True)
class StatusPace:
    """When each job's status was last written, by this process."""

    clock: Callable[[], float]
    _written: dict[str, float] = field(default_factory=dict, init=False)

    def wait(self, job: JobView, status: TrainingJobStatus) -> float:
        """Seconds for which writing `status` has to wait; 0 where it is news, or nothing was written lately."""
        if is_news(job.status, status):
            return 0.0
        return max(0.0, self._written.get(job.uid, float("-inf")) + PERIOD - self.clock())

    def wrote(self, uid: str) -> None:
        """The job's status has just been written."""
        self._written[uid] = self.clock()

    def forget(self, uid: str) -> None:
        """The job is gone."""
        self._written.pop(uid, None)
