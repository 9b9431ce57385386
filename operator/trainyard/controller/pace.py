"""How often a status is written. A job's moves at once; what only counts pods no more than once a second. Decides nothing else.

Nor in the second after the job's pods were created or deleted: when a hundred jobs start at once, their pods come first.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from trainyard.api.status import TrainingJobStatus
from trainyard.domain.model import JobView
from trainyard.domain.report import is_news

PERIOD = 1.0
"""Seconds. A job of 500 workers would otherwise be written for each of them that gets ready, and each time be sent to all watchers."""


@dataclass(slots=True)
class StatusPace:
    """When each job was last written or acted upon, by this process."""

    clock: Callable[[], float]
    _held: dict[str, float] = field(default_factory=dict, init=False)

    def wait(self, job: JobView, status: TrainingJobStatus) -> float:
        """Seconds for which writing `status` has to wait; 0 where it is news, or nothing was done lately."""
        if is_news(job.status, status):
            return 0.0
        return max(0.0, self._held.get(job.uid, float("-inf")) + PERIOD - self.clock())

    def hold(self, uid: str) -> None:
        """The job's status has just been written, or its pods created or deleted."""
        self._held[uid] = self.clock()

    def forget(self, uid: str) -> None:
        """The job is gone."""
        self._held.pop(uid, None)
