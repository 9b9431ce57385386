"""Goodput: the share of a period with faults that went into steps that were not repeated."""

import statistics
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import cycle, islice, pairwise
from typing import Final

from dev.benchmarks.recovery import ranks
from dev.benchmarks.recovery.faults import AWAY, FAULTS, Fault, Scene, rank_of
from dev.benchmarks.recovery.milestones import DiaryReader, Group, Life
from dev.benchmarks.recovery.systems import Job
from dev.benchmarks.recovery.trial import POLL_SECONDS, Trial, await_steps
from dev.benchmarks.scale.api import BenchmarkError

MINUTE: Final = 60.0
SETTLED_STEPS: Final = 20
AFTERWARDS: Final = 30.0
"""Seconds of training after the operator is back, to observe what it does then."""
UNDO_SECONDS: Final = 40.0
"""Seconds until a node is powered on again and a hung rank continues. Without hang detection the job would hang forever."""
SCRIPT: Final = ("kill", "pod", "raise", "operator", "kill", "pods", "hang", "raise", "pod", "power")
"""Repeated sequence of faults, the same for all systems."""
FRESH_SECONDS: Final = 40.0
"""Time for the status to include recent steps; it is written every ten seconds."""
WITHIN_POINTS: Final = 2.0
"""Allowed difference between reported goodput and that of the logs."""
DIRECT: Final = frozenset({"kill", "raise", "hang"})
"""Faults of a process, which must exist."""


@dataclass(frozen=True, slots=True)
class Goodput:
    """Result of one period, computed from the diaries of the processes."""

    system: str
    minutes: float
    faults: int
    missed: int
    """Faults without a target, because the job did not run."""
    goodput: float
    """Share of time spent on steps that were not repeated, from 0 to 1."""
    steps: int
    """Steps gained."""
    lost_steps: int
    """Repeated steps."""
    step_s: float
    """Median seconds per step."""
    reported: float | None = None
    """Goodput that the job's status reports for the same period; None if it reports none."""
    lost_s: Mapping[str, float] = field(default_factory=dict)
    """Lost seconds by cause, with the names of the status."""

    @property
    def points_off(self) -> float | None:
        """Return reported minus measured goodput in percentage points."""
        return None if self.reported is None else round((self.reported - self.goodput) * 100, 2)


def earned(lives: Iterable[Life], began: float, ended: float) -> tuple[int, int, float]:
    """Return steps gained, steps repeated and seconds per step between two times, from the diaries of rank 0."""
    first = [life.steps for life in lives if life.rank == 0]
    before = max((step for steps in first for step, at in steps if at <= began), default=0)
    done = [step for steps in first for step, at in steps if began < at <= ended]
    gained = max(done, default=before) - before
    took = [after[1] - before[1] for steps in first for before, after in pairwise(steps)]
    return gained, len(done) - gained, statistics.median(took) if took else 0.0


def reported(before: Mapping[str, float] | None, after: Mapping[str, float] | None) -> dict[str, float]:
    """Return seconds by category between two readings of a status. Empty if either reading is None."""
    if before is None or after is None:
        return {}
    return {what: round(seconds - before.get(what, 0.0), 1) for what, seconds in after.items()}


@dataclass(frozen=True, slots=True)
class Script:
    """Faults at regular intervals."""

    faults: tuple[Fault, ...]
    pace: float = MINUTE
    """Seconds from one fault to the next, or to the end."""
    undo: float = UNDO_SECONDS
    """Seconds from a fault until its undo."""


def mixed(minutes: int, kinds: Collection[str]) -> Script:
    """Return a script with one fault per minute, of these kinds."""
    return Script(tuple(islice(cycle([FAULTS[kind] for kind in SCRIPT if kind in kinds]), minutes)))


def away(minutes: int) -> Script:
    """Return a script that stops the operator for this time, without other faults."""
    return Script((AWAY,), minutes * MINUTE + AFTERWARDS, minutes * MINUTE)


@dataclass(frozen=True, slots=True)
class Stretch:
    """One system under a script."""

    trial: Trial
    script: Script
    say: Callable[[str], None]

    def go(self) -> Goodput:
        """Measure.

        Raises:
            BenchmarkError: the job does not start.
        """
        missed = 0
        with self.trial.training("goodput") as (job, diaries):
            group = await_steps(diaries, SETTLED_STEPS)
            before = self._fresh(job)
            began = time.monotonic()
            for number, fault in enumerate(self.script.faults):
                group = _current(diaries, group)
                pids = ranks.living(job.name)
                scene = Scene(self.trial.ground, self.trial.operator, job, group, pids, rank_of(number))
                miss = _hit(fault, scene)
                missed += bool(miss)
                self.say(
                    f"{self.trial.system.name} {fault.name} of rank {scene.rank}{f' misses: {miss}' if miss else ''}"
                )
                now = began + number * self.script.pace
                _sleep_until(now + self.script.undo)
                if fault.undo and not miss:
                    fault.undo(scene)
                _sleep_until(now + self.script.pace)
            seconds, spent = time.monotonic() - began, reported(before, self._spent(job))
            diaries.read()
        gained, lost, step_s = earned(diaries.lives, began, began + seconds)
        return Goodput(
            self.trial.system.name,
            round(seconds / MINUTE, 1),
            len(self.script.faults),
            missed,
            round(gained * step_s / seconds, 4),
            gained,
            lost,
            round(step_s, 4),
            round(spent["productive"] / sum(spent.values()), 4) if any(spent.values()) else None,
            {what: lost_s for what, lost_s in spent.items() if what != "productive"},
        )

    def _fresh(self, job: Job) -> Mapping[str, float] | None:
        """Return the time spent by category right after a status update, so that it is only seconds old."""
        if not self.trial.system.reports_goodput:
            return None
        first, deadline = self._spent(job), time.monotonic() + FRESH_SECONDS
        current = first
        while time.monotonic() < deadline and (current == first or not any((current or {}).values())):
            time.sleep(POLL_SECONDS)
            current = self._spent(job)
        return current

    def _spent(self, job: Job) -> Mapping[str, float] | None:
        system = self.trial.system
        return system.spent(self.trial.ground.api.call("GET", f"{system.jobs_path}/{job.name}"))


def table(rows: Sequence[Goodput]) -> str:
    """Return the table: one line per system."""
    head = f"{'system':<20}{'goodput':>9}{'reported':>10}{'points':>8}{'steps':>8}{'lost':>7}{'step s':>8}{'missed':>8}"
    lines = [
        f"{row.system:<20}{row.goodput:>9.1%}{_formatted(row.reported, '.1%'):>10}{_formatted(row.points_off, '+.1f'):>8}"
        f"{row.steps:>8}{row.lost_steps:>7}{row.step_s:>8.3f}{row.missed:>8}"
        for row in rows
    ]
    return "\n".join([head, *lines])


def plain(row: Goodput) -> dict[str, object]:
    """Return the row as it is written to the file."""
    return {**asdict(row), "points_off": row.points_off}


def agrees(row: Goodput) -> bool:
    """Return whether the reported goodput matches that of the logs."""
    return row.points_off is not None and abs(row.points_off) <= WITHIN_POINTS


def verdict(row: Goodput) -> str:
    """Return the result of `agrees` as a sentence."""
    if row.reported is None:
        return f"{row.system}: the job reports no goodput"
    is_it = "is" if agrees(row) else "IS NOT"
    return (
        f"{row.system}: the reported goodput ({row.reported:.1%}) {is_it} within {WITHIN_POINTS:g} points of that of the logs"
        f" ({row.goodput:.1%})"
    )


def _formatted(number: float | None, how: str) -> str:
    return "-" if number is None else format(number, how)


def _current(diaries: DiaryReader, last: Group) -> Group:
    """Return the group that trained last."""
    return next((group for group in reversed(diaries.read()) if group.complete), last)


def _sleep_until(moment: float) -> None:
    time.sleep(max(0.0, moment - time.monotonic()))


def _hit(fault: Fault, scene: Scene) -> str:
    if fault.name in DIRECT and scene.rank not in scene.pids:
        return "the rank has no process"
    try:
        fault.inject(scene)
    except BenchmarkError as error:
        return str(error)
    return ""
