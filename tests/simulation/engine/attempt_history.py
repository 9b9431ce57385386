"""What really happened to each attempt, as the cluster itself has it. The counters in the status are held against this."""

from dataclasses import dataclass, field

from tests.simulation.engine import stored_objects
from tests.simulation.engine.server import OPERATOR
from tests.simulation.engine.stored_objects import JOBS_PLACE, PODS_PLACE
from tests.support.fake_cluster import Change, Json


@dataclass(slots=True)
class Page:
    """One attempt of one job."""

    failed: bool = False
    """A worker ended with an error of its own."""
    doubtful: bool = False
    """A worker ended with an error after it was asked to go, and by no signal: whose fault that was only the clocks can tell."""
    struck: bool = False
    """A worker was taken away, or kept from running, by anybody but the operator."""
    unwished: bool = False
    """The user asked for another size, or for a suspension."""
    culprits: set[str] = field(default_factory=set)
    """UIDs of the pods that ended with an error."""


@dataclass(slots=True)
class AttemptHistory:
    """All attempts of all jobs."""

    pages: dict[tuple[str, int], Page] = field(default_factory=dict)

    def page(self, job: str, attempt: int) -> Page:
        """The page of an attempt."""
        return self.pages.setdefault((job, attempt), Page())

    def note(self, change: Change, actor: str) -> None:
        """Something was written, by `actor`."""
        old, new = change.old, change.new
        if old is None:
            return
        if change.place == PODS_PLACE and (job := stored_objects.labelled(old)):
            self._pod(self.page(job, stored_objects.attempt(old)), old, new, actor)
        if change.place == JOBS_PLACE and new is not None and _desired(old) != _desired(new):
            self.page(stored_objects.uid(new), stored_objects.stored_attempt(new)).unwished = True

    def blur(self, job: str, newest: int) -> None:
        """The job's status was lost. Which attempt goes on the pods will tell, up to the `newest`; none of them is sure any more."""
        for attempt in range(1, newest + 1):
            page = self.page(job, attempt)
            page.doubtful = page.struck = page.unwished = True
        for place in [place for place in self.pages if place[0] == job and place[1] > newest]:
            del self.pages[place]

    @staticmethod
    def _pod(page: Page, old: Json, new: Json | None, actor: str) -> None:
        if new is None or stored_objects.going(new) != stored_objects.going(old):
            if actor != OPERATOR and not stored_objects.going(old):
                page.struck = True
            return
        if stored_objects.targeted(new):
            page.struck = True
        if stored_objects.ended(new) and not stored_objects.ended(old):
            end, own = stored_objects.end(new), stored_objects.overfull(new)
            taken = new["status"].get("reason") and not own
            if end is None or end["reason"] == stored_objects.LOST_CONTAINER or taken:
                page.struck = True
            elif end["exitCode"] == 0:
                return
            elif not (stored_objects.going(new) or stored_objects.targeted(new)):
                page.failed = True
                page.culprits.add(stored_objects.uid(new))
            elif own or end["exitCode"] not in stored_objects.SIGNALLED:
                page.doubtful = True
                page.culprits.add(stored_objects.uid(new))


def _desired(job: Json) -> tuple[object, ...]:
    return job["spec"].get("replicas"), stored_objects.lifecycle(job, "suspend")
