"""The faults of a fake API server, in the order of the test's script."""

import re
from dataclasses import dataclass, field


@dataclass(slots=True, kw_only=True)
class Fault:
    """What happens to the next `times` requests that match. With no field of the second group set it only counts
    them.
    """

    method: str = ".*"
    path: str = ".*"
    """A regular expression for the whole path."""
    watch: bool | None = None
    """Watches only, or no watches; None: both."""
    times: int = 1

    status: int | None = None
    """Refuse with this status."""
    reason: str = "InternalError"
    message: str = "a fault was asked for"
    causes: tuple[str, ...] = ()
    retry_after: float | None = None
    drop: bool = False
    """Cut the connection before anything is done. A client that has used it before repeats GET, PUT and DELETE once:
    `times=2`."""
    lose_answer: bool = False
    """Do it, then cut the connection: what a time-out after success looks like. As with `drop`, some requests are
    repeated."""
    delay: float = 0.0
    """Seconds before anything is done."""
    silent: bool = False
    """A watch that is accepted and then says nothing: a half-open connection."""
    text: str | None = None
    """Answer 200 with this body; for a watch: these lines, and then the end of the stream."""

    def matches(self, method: str, path: str, *, watch: bool) -> bool:
        return (
            self.times > 0
            and re.fullmatch(self.method, method) is not None
            and re.fullmatch(self.path, path) is not None
            and self.watch in (None, watch)
        )


@dataclass(slots=True)
class FaultScript:
    """The faults still to come. The first that matches a request is used up by it."""

    waiting: list[Fault] = field(default_factory=list)

    def next(self, method: str, path: str, *, watch: bool) -> Fault | None:
        for fault in self.waiting:
            if fault.matches(method, path, watch=watch):
                fault.times -= 1
                if not fault.times:
                    self.waiting.remove(fault)
                return fault
        return None
