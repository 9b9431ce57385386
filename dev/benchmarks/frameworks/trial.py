"""Measure one fault of one framework under one system, with the trial of the recovery benchmark."""

from dataclasses import dataclass
from pathlib import Path
from signal import SIGKILL
from typing import Final

from typing_extensions import override

from dev.benchmarks.frameworks.processes import writers
from dev.benchmarks.frameworks.systems import RANKS
from dev.benchmarks.recovery import ranks
from dev.benchmarks.recovery.milestones import Group
from dev.benchmarks.recovery.systems import Job
from dev.benchmarks.recovery.trial import GONE_SECONDS, Trial
from dev.benchmarks.scale.api import wait
from dev.benchmarks.scale.child import ROOT

PROGRAMS: Final = Path(__file__).parent / "programs"
DIARY: Final = PROGRAMS / "diary.py"


@dataclass(frozen=True, slots=True)
class FrameworkTrial(Trial):
    """A framework under a system."""

    program: str
    size = RANKS
    folder = "frameworks"

    @override
    def programs(self) -> dict[str, Path]:
        """Return the program, and the module that it imports, at the path by which it imports it."""
        return {"program.py": PROGRAMS / self.program, str(DIARY.relative_to(ROOT)): DIARY}

    @override
    def living(self, job: Job, group: Group) -> dict[int, int]:
        """Return the processes that have a diary of the group open."""
        found = writers({life.diary for life in group.lives})
        return {life.rank: found[life.diary] for life in group.lives if life.diary in found}

    @override
    def end(self, job: Job) -> None:
        """Kill the remaining ranks, so that the next job does not share the CPU with them."""

        def gone() -> bool:
            left = writers({path.name for path in (job.folder / "lives").glob("*.jsonl")})
            for pid in left.values():
                ranks.send(pid, SIGKILL)
            return not left

        wait(gone, GONE_SECONDS, f"processes of {job.name} do not exit")
