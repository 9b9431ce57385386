"""What a watch of pods and jobs adds up to, and when it first added up to all. Pure: the clock is the caller's."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

Json = Mapping[str, Any]
ENDED: Final = frozenset({"Failed", "Succeeded"})


@dataclass(slots=True)
class Milestone:
    """When a number first reached its target. Once asked again, it must have been missed before it can be reached."""

    target: int
    at: float | None = None
    armed: bool = True

    def look(self, number: int, now: float) -> bool:
        """Whether it has been reached this very moment."""
        if not self.armed:
            self.armed = number < self.target
        elif self.at is None and number >= self.target:
            self.at = now
            return True
        return False

    def again(self) -> None:
        """Wait for the milestone again."""
        self.at, self.armed = None, False


@dataclass(slots=True)
class Tally:
    """Live pods, running pods, and jobs whose status reports that all workers run."""

    pods: int
    jobs: int
    says: Callable[[Json], bool]
    live: set[str] = field(default_factory=set)
    running: set[str] = field(default_factory=set)
    reported: set[str] = field(default_factory=set)
    milestones: dict[str, Milestone] = field(init=False)

    def __post_init__(self) -> None:
        self.milestones = {
            "created": Milestone(self.pods),
            "running": Milestone(self.pods),
            "status": Milestone(self.jobs),
        }

    def pod(self, kind: str, pod: Json, now: float) -> list[str]:
        """Take in an event of a pod. Returns the milestones that it reached."""
        uid, phase = pod["metadata"]["uid"], pod.get("status", {}).get("phase")
        live = kind != "DELETED" and "deletionTimestamp" not in pod["metadata"] and phase not in ENDED
        _put(self.live, uid, member=live)
        _put(self.running, uid, member=live and phase == "Running")
        return self._reached({"created": len(self.live), "running": len(self.running)}, now)

    def job(self, kind: str, job: Json, now: float) -> list[str]:
        """Take in an event of a job. Returns the milestones that it reached."""
        _put(self.reported, job["metadata"]["uid"], member=kind != "DELETED" and self.says(job))
        return self._reached({"status": len(self.reported)}, now)

    def again(self) -> None:
        """Wait for all milestones again."""
        for milestone in self.milestones.values():
            milestone.again()

    def numbers(self) -> dict[str, int]:
        """Return the current counts."""
        return {"created": len(self.live), "running": len(self.running), "status": len(self.reported)}

    def _reached(self, numbers: Mapping[str, int], now: float) -> list[str]:
        return [name for name, number in numbers.items() if self.milestones[name].look(number, now)]


def _put(names: set[str], name: str, *, member: bool) -> None:
    if member:
        names.add(name)
    else:
        names.discard(name)
