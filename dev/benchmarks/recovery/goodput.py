"""Goodput: how much of a stretch of time with faults went into steps that were not done again."""

import statistics
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import cycle, islice, pairwise
from typing import Final

from dev.benchmarks.recovery import ranks
from dev.benchmarks.recovery.faults import AWAY, FAULTS, Fault, Scene, rank_of
from dev.benchmarks.recovery.milestones import Group, Life, Story
from dev.benchmarks.recovery.systems import Job
from dev.benchmarks.recovery.trial import POLL_SECONDS, Trial, await_steps
from dev.benchmarks.scale.api import BenchmarkError

MINUTE: Final = 60.0
SETTLED_STEPS: Final = 20
AFTERWARDS: Final = 30.0
"""Seconds of training after the operator is back, so that what it does then is seen too."""
UNDO_SECONDS: Final = 40.0
"""So long after the fault a node's power is back, and a rank that hangs goes on: with no detection of hangs it would be the end of it."""
SCRIPT: Final = ("kill", "pod", "raise", "operator", "kill", "pods", "hang", "raise", "pod", "power")
"""Over and over, the same for all systems."""
FRESH_SECONDS: Final = 40.0
"""For the status to tell of steps that were just done: it is written every ten seconds."""
WITHIN_POINTS: Final = 2.0
"""So far what a job reports may be from what its logs say."""
DIRECT: Final = frozenset({"kill", "raise", "hang"})
"""Faults of a process, which has to be there."""


@dataclass(frozen=True, slots=True)
class Goodput:
    """What came of the stretch, as the processes' diaries say."""

    system: str
    minutes: float
    faults: int
    missed: int
    """Faults that found nothing to hit: the job did not run."""
    goodput: float
    """The share of the time, from 0 to 1, that the steps which counted take."""
    steps: int
    """How much further the training is."""
    lost_steps: int
    """Steps that were done again."""
    step_s: float
    """What a step takes: the median."""
    reported: float | None = None
    """The share that the job's status tells of the same stretch; None where it tells of none."""
    lost_s: Mapping[str, float] = field(default_factory=dict)
    """Seconds that were lost, by the names that the status gives them."""

    @property
    def points_off(self) -> float | None:
        """How far what is reported is above what the diaries say, in points of a hundred."""
        return None if self.reported is None else round((self.reported - self.goodput) * 100, 2)


def earned(lives: Iterable[Life], began: float, ended: float) -> tuple[int, int, float]:
    """Steps gained and steps lost between two times, and the seconds that a step takes. Rank 0 speaks for all."""
    first = [life.steps for life in lives if life.rank == 0]
    before = max((step for steps in first for step, at in steps if at <= began), default=0)
    done = [step for steps in first for step, at in steps if began < at <= ended]
    gained = max(done, default=before) - before
    took = [after[1] - before[1] for steps in first for before, after in pairwise(steps)]
    return gained, len(done) - gained, statistics.median(took) if took else 0.0


def reported(before: Mapping[str, float] | None, after: Mapping[str, float] | None) -> dict[str, float]:
    """Seconds by what they went into, from one reading of a status to another. Empty where either tells of none."""
    if before is None or after is None:
        return {}
    return {what: round(seconds - before.get(what, 0.0), 1) for what, seconds in after.items()}


@dataclass(frozen=True, slots=True)
class Script:
    """The faults, at even distances."""

    faults: tuple[Fault, ...]
    pace: float = MINUTE
    """Seconds from one fault to the next, or to the end."""
    undo: float = UNDO_SECONDS
    """Seconds from a fault until what can be undone of it is undone."""


def mixed(minutes: int, kinds: Collection[str]) -> Script:
    """A fault a minute, out of those kinds."""
    return Script(tuple(islice(cycle([FAULTS[kind] for kind in SCRIPT if kind in kinds]), minutes)))


def away(minutes: int) -> Script:
    """The operator is away for so long, and nothing else happens."""
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
        with self.trial.training("goodput") as (job, story):
            group = await_steps(story, SETTLED_STEPS)
            before = self._fresh(job)
            began = time.monotonic()
            for number, fault in enumerate(self.script.faults):
                group = _current(story, group)
                pids = ranks.living(job.name)
                scene = Scene(self.trial.ground, self.trial.operator, job, group, pids, rank_of(number))
                why = _hit(fault, scene)
                missed += bool(why)
                self.say(
                    f"{self.trial.system.name} {fault.name} of rank {scene.rank}{f' misses: {why}' if why else ''}"
                )
                now = began + number * self.script.pace
                _sleep_until(now + self.script.undo)
                if fault.undo and not why:
                    fault.undo(scene)
                _sleep_until(now + self.script.pace)
            seconds, spent = time.monotonic() - began, reported(before, self._spent(job))
            story.read()
        gained, lost, step_s = earned(story.lives, began, began + seconds)
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
        """What the status tells the moment that it tells something new: by then some seconds old at most, and not ten and more."""
        if not self.trial.system.tells_goodput:
            return None
        first, deadline = self._spent(job), time.monotonic() + FRESH_SECONDS
        told = first
        while time.monotonic() < deadline and (told == first or not any((told or {}).values())):
            time.sleep(POLL_SECONDS)
            told = self._spent(job)
        return told

    def _spent(self, job: Job) -> Mapping[str, float] | None:
        system = self.trial.system
        return system.spent(self.trial.ground.api.call("GET", f"{system.jobs_path}/{job.name}"))


def table(rows: Sequence[Goodput]) -> str:
    """A line for each system."""
    head = f"{'system':<20}{'goodput':>9}{'reported':>10}{'points':>8}{'steps':>8}{'lost':>7}{'step s':>8}{'missed':>8}"
    lines = [
        f"{row.system:<20}{row.goodput:>9.1%}{_told(row.reported, '.1%'):>10}{_told(row.points_off, '+.1f'):>8}"
        f"{row.steps:>8}{row.lost_steps:>7}{row.step_s:>8.3f}{row.missed:>8}"
        for row in rows
    ]
    return "\n".join([head, *lines])


def plain(row: Goodput) -> dict[str, object]:
    """The row as the file has it."""
    return {**asdict(row), "points_off": row.points_off}


def agrees(row: Goodput) -> bool:
    """Whether what the job reports is what its logs say."""
    return row.points_off is not None and abs(row.points_off) <= WITHIN_POINTS


def verdict(row: Goodput) -> str:
    """The same as a sentence."""
    if row.reported is None:
        return f"{row.system}: the job reports no goodput"
    is_it = "is" if agrees(row) else "IS NOT"
    return (
        f"{row.system}: what the job reports ({row.reported:.1%}) {is_it} within {WITHIN_POINTS:g} points of what its logs say"
        f" ({row.goodput:.1%})"
    )


def _told(number: float | None, how: str) -> str:
    return "-" if number is None else format(number, how)


def _current(story: Story, last: Group) -> Group:
    """The group that trained last."""
    return next((group for group in reversed(story.read()) if group.complete), last)


def _sleep_until(moment: float) -> None:
    time.sleep(max(0.0, moment - time.monotonic()))


def _hit(fault: Fault, scene: Scene) -> str:
    if fault.name in DIRECT and scene.rank not in scene.pids:
        return "there is no such process"
    try:
        fault.inject(scene)
    except BenchmarkError as error:
        return str(error)
    return ""
