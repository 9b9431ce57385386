"""What goes wrong between the operator and the API server, as the schedule says. Decides nothing by chance, does nothing itself."""

from dataclasses import dataclass, field
from enum import StrEnum, auto


class Fault(StrEnum):
    """What can become of a request."""

    CONFLICT = auto()
    """409: a client wrote in between, though none did."""
    TOO_MANY = auto()
    """429."""
    INTERNAL = auto()
    """500."""
    FORBIDDEN = auto()
    """403: a right is missing for a while."""
    UNREACHABLE = auto()
    """The connection breaks before the request arrives."""
    ANSWER_LOST = auto()
    """It is done, and the connection breaks before the answer arrives."""
    TIMED_OUT = auto()
    """It never arrives, which takes as long as the client waits."""
    TIMED_OUT_AFTER_SUCCESS = auto()
    """It is done, and the answer does not come for as long as the client waits."""
    SLOW = auto()
    """It arrives late, and is answered."""


ANY = ""


@dataclass(slots=True)
class Planned:
    """A fault for some of the requests to come."""

    fault: Fault
    verb: str
    """Method and plural, `PUT trainingjobs` say, or the beginning of that; `WATCH pods` for a watch."""
    skip: int = 0
    """So many requests that it is meant for are spared first."""
    times: int = 1


@dataclass(slots=True)
class NetworkFaults:
    """The troubles of the moment. By plural where it says so."""

    planned: list[Planned] = field(default_factory=list)
    lag: dict[str, float] = field(default_factory=dict)
    """Seconds by which watches are late."""
    drops: dict[str, int] = field(default_factory=dict)
    """So many events to come are lost, unnoticed."""
    lossy: set[str] = field(default_factory=set)
    """Where any were lost: they are never delivered, so in the end these watches are broken off."""
    repeats: dict[str, int] = field(default_factory=dict)
    """So many of the next events are followed by one that was delivered before."""
    stale: dict[str, float] = field(default_factory=dict)
    """Lists are answered from what was so many seconds ago."""
    quota: int | None = None
    """How many pods the namespace may have."""
    webhook_denies: bool = False
    """A webhook refuses all pods."""

    def strikes(self, verb: str) -> Fault | None:
        """The fault that the next request of this verb meets, if any; it is used up by that."""
        for planned in self.planned:
            if not verb.startswith(planned.verb):
                continue
            if planned.skip:
                planned.skip -= 1
                continue
            planned.times -= 1
            if not planned.times:
                self.planned.remove(planned)
            return planned.fault
        return None

    def use_up(self, counts: dict[str, int], plural: str) -> bool:
        """Whether one of `drops` or `repeats` is left for this plural; one less is left then."""
        left = counts.get(plural, 0)
        if left:
            counts[plural] = left - 1
        return left > 0

    def clear(self) -> None:
        """The troubles are over."""
        self.planned.clear()
        for troubles in (self.lag, self.drops, self.repeats, self.stale):
            troubles.clear()
        self.quota, self.webhook_denies = None, False
