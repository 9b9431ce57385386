"""Find Python programs that record nothing about themselves: a PYTHONPATH of the user's own, or `python -I`, hides `sitecustomize.py`."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from pathlib import Path

from trainyard_agent.mpi import REMOTE_START_OPTION
from trainyard_agent.processes import Process, arguments, environment, processes_by_pid, running_children
from trainyard_agent.rank_record_file import MAX_NUMBER, RankRecord
from trainyard_agent.report import RANK_VARIABLES
from trainyard_agent.signalling import is_launcher

INTERPRETER = re.compile(r"python[\d.]*[a-z]*")
FRAMEWORK_FILES = ("/torch/lib/", "/jaxlib/", "/tensorflow/", "/paddle/", "/mindspore/")
"""Parts of the paths of libraries that a framework loads."""
CODE_OPTION = "-c"


class UnobservedPrograms:
    """What is known of them, as if they had recorded it. Their exit codes are the kernel's."""

    def __init__(self, roots: Callable[[], Iterable[int]], most: int) -> None:
        """`roots`: gives the processes that run the command; `most`: how many programs to look at."""
        self._roots, self._most = roots, most
        self._records: dict[int, RankRecord] = {}

    def look(self, observed: Container[int]) -> dict[int, RankRecord]:
        """Return the records that are new or changed. `observed`: those that have written a record, which counts."""
        table, changed = processes_by_pid(), dict[int, RankRecord]()
        for pid, launcher in _uppermost(self._roots(), table):
            known = self._records.get(pid)
            if pid in observed or (known is None and len(self._records) >= self._most):
                continue
            found = known or RankRecord(pid, _rank(pid), True, pid, _program(pid), started_by=launcher)  # noqa: FBT003 - a field
            if not found.trains:
                found = found._replace(trains=_has_framework(found))
            if found != known:
                self._records[pid] = changed[pid] = found
        return changed


def _uppermost(roots: Iterable[int], table: Mapping[int, Process]) -> Iterator[tuple[int, int | None]]:
    """Yield the uppermost Python programs below these processes; below a launcher, its ranks with its PID.

    What such a program starts itself is a helper of it. `table`: all processes.
    """
    level: list[tuple[int, int | None]] = [(root, None) for root in roots]
    while level:
        pid, launcher = level.pop()
        if REMOTE_START_OPTION in arguments(pid):
            # The agent's own, in the place of ssh.
            continue
        if not _is_python(pid):
            level += [(child, launcher) for child in running_children(pid, table)]
        elif is_launcher(pid):
            level += [(child, pid) for child in running_children(pid, table)]
        else:
            yield pid, launcher


def _has_framework(record: RankRecord) -> bool:
    """Return whether a program has loaded a framework, and is no code on the command line."""
    try:
        files = Path(f"/proc/{record.pid}/maps").read_text(errors="replace")
    except OSError:
        return False
    return record.program != CODE_OPTION and any(part in files for part in FRAMEWORK_FILES)


def _is_python(pid: int) -> bool:
    # Its command line may be any text, that of `setproctitle` for example.
    try:
        return INTERPRETER.fullmatch(Path(f"/proc/{pid}/exe").readlink().name) is not None
    except OSError:
        return False


def _rank(pid: int) -> int | None:
    """Return the rank that a program was given; None where that has no number."""
    variables = environment(pid)
    given = next((variables[name] for name in RANK_VARIABLES if variables.get(name)), "")
    is_number = given.isascii() and given.isdecimal() and len(given) <= len(str(MAX_NUMBER))
    return int(given) if is_number else None


def _program(pid: int) -> str:
    """Return the script or module, as the record of an observed program names it."""
    return next((word for word in arguments(pid)[1:] if word == CODE_OPTION or not word.startswith("-")), "")
