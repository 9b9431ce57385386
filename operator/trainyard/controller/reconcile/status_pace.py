"""How often a status is written. A job's moves at once, unless it moves all the time; what only counts pods once a second, and less often
where many jobs start.

Decides nothing else. When a hundred jobs start at once, their pods come first.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from trainyard.api.status import TrainingJobStatus
from trainyard.domain.state.snapshot import JobView
from trainyard.domain.status.report import is_news

PERIOD = 1.0
"""Seconds. A job of 500 workers would otherwise be written for each of them that gets ready, and each time be sent to all watchers."""
SHARE = 0.05
"""Seconds for each job that has counts to tell: up to a hundred of them are written twenty times a second together, more of them
every `LONGEST` seconds each."""
LONGEST = 20.0
"""Seconds for which counts wait at most, however many jobs are being started. Most of a thousand lone workers run by then."""
BURST = 60
"""Writes of one job that nothing holds up: more than the worst minute of one that recovers takes."""
BETWEEN = 0.5
"""Seconds between two writes of a job that has had its burst. Its program, or whoever has got hold of a worker's token, could otherwise
keep the API server busy for all: by failing at once after each start, or by asking for an end and taking it back."""


@dataclass(slots=True)
class StatusPace:
    """When each job was last written or acted upon by this process, who waits, and whether any is being acted upon now."""

    clock: Callable[[], float]
    _held: dict[str, float] = field(default_factory=dict, init=False)
    _spent: dict[str, float] = field(default_factory=dict, init=False)
    """By job the time at which its writes are worked off, one in `BETWEEN` seconds."""
    _waiting: set[str] = field(default_factory=set, init=False)
    _acting: int = field(default=0, init=False)

    @property
    def busy(self) -> bool:
        """Whether pods are being created or deleted, for whichever job."""
        return self._acting > 0

    def wait(self, job: JobView, status: TrainingJobStatus) -> float:
        """Seconds after which to ask again whether to write `status`; 0 where it may be written now."""
        self._waiting.discard(job.uid)
        if is_news(job, status):
            return max(0.0, self._spent.get(job.uid, 0.0) - BURST * BETWEEN - self.clock())
        period = min(LONGEST, max(PERIOD, SHARE * len(self._waiting)))
        left = self._held.get(job.uid, float("-inf")) + period - self.clock()
        if left <= 0:
            return 0.0
        self._waiting.add(job.uid)
        return left

    @contextmanager
    def acting(self) -> Iterator[None]:
        """While in here, pods are created or deleted."""
        self._acting += 1
        try:
            yield
        finally:
            self._acting -= 1

    def hold(self, uid: str) -> None:
        """The job's status has just been written."""
        now = self._held[uid] = self.clock()
        self._spent[uid] = max(now, self._spent.get(uid, now)) + BETWEEN

    def acted(self, uid: str) -> None:
        """All was done that had to be, which can be told in a moment. Where that moment is long in coming, all the more jobs wait."""
        self.hold(uid)
        self._waiting.add(uid)

    def told(self, uid: str) -> None:
        """The job's status says all there is to say."""
        self._waiting.discard(uid)

    def forget(self, uid: str) -> None:
        """The job is gone."""
        self._held.pop(uid, None)
        self._spent.pop(uid, None)
        self._waiting.discard(uid)
