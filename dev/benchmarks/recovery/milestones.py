"""Read the diaries of training processes: lives of processes, and the groups that they formed. Only `DiaryReader.read` does I/O."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

WORKERS: Final = 4
MARKS: Final = ("started", "imported", "connected", "loaded")


@dataclass(slots=True)
class Life:
    """One process and its milestones."""

    rank: int = -1
    pod: str = ""
    group: str = ""
    """The group that it joined, named by its rank 0; empty before that."""
    size: int = WORKERS
    """How many ranks that group has."""
    diary: str = ""
    """The name of its diary."""
    marks: dict[str, float] = field(default_factory=dict)
    """Monotonic time of each milestone, in seconds."""
    steps: list[tuple[int, float]] = field(default_factory=list)
    """Completed steps, each with its monotonic time."""

    def take(self, line: Mapping[str, Any]) -> None:
        """Apply the next line of its diary."""
        what = line["what"]
        if what == "step":
            self.steps.append((line["step"], line["at"]))
            return
        self.marks[what] = line["at"]
        self.rank = line.get("rank", self.rank)
        self.pod = line.get("pod", self.pod)
        self.group = line.get("group", self.group)
        self.size = line.get("size", self.size)


@dataclass(frozen=True, slots=True)
class Group:
    """Processes that trained together."""

    name: str
    lives: tuple[Life, ...]

    @property
    def size(self) -> int:
        """Return the number of ranks, from their environment."""
        return self.lives[0].size

    @property
    def complete(self) -> bool:
        """Return whether each rank has completed a step."""
        return len(self.lives) == self.size and all(life.steps for life in self.lives)

    @property
    def first_step(self) -> tuple[int, float]:
        """Return the first step of a complete group, and the time when the first rank completed it."""
        return min((life.steps[0] for life in self.lives), key=lambda step: step[1])

    @property
    def last_step(self) -> int:
        """Return the last completed step of any rank; 0 for none."""
        return max((life.steps[-1][0] for life in self.lives if life.steps), default=0)

    def mark(self, what: str) -> float:
        """Return the time when the last rank reached this milestone."""
        return max(life.marks[what] for life in self.lives)


def groups(lives: Iterable[Life]) -> list[Group]:
    """Return all named groups, ordered by their first step; incomplete groups are last."""
    named: dict[str, list[Life]] = {}
    for life in lives:
        if life.group:
            named.setdefault(life.group, []).append(life)
    found = [Group(name, tuple(sorted(members, key=lambda life: life.rank))) for name, members in named.items()]
    return sorted(found, key=lambda group: group.first_step[1] if group.complete else float("inf"))


class DiaryReader:
    """The diaries of one job, read as they grow."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lives: dict[Path, Life] = {}
        self._read: dict[Path, int] = {}

    @property
    def lives(self) -> list[Life]:
        """Return all processes."""
        return list(self._lives.values())

    def read(self) -> list[Group]:
        """Read new lines, and return the groups. An incomplete line is read the next time."""
        for path in self._folder.glob("*.jsonl"):
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                whole, newline, _ = file.read().rpartition(b"\n")
            self._read[path] = self._read.get(path, 0) + len(whole) + len(newline)
            life = self._lives.setdefault(path, Life(diary=path.name))
            for line in whole.splitlines():
                life.take(json.loads(line))
        return groups(self._lives.values())
