"""Send signals to the processes that they are meant for: the ranks, not the launchers above them or the processes below them.

A launcher would pass a signal on to all processes of a rank's group, data loader workers included. It would kill the
rank soon after, whatever the grace period is: torchrun after 30 seconds, mpirun after one.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from typing import NamedTuple

from trainyard_agent.processes import (
    Process,
    arguments,
    catches,
    environment,
    exit_code,
    is_alive,
    open_file,
    pipe,
    processes_by_pid,
    running_children,
    send,
)
from trainyard_agent.program import PYTHON
from trainyard_agent.spawn import TERMINATION_SIGNALS

TERMINATED_CODE = 128 + signal.SIGTERM
SHELLS = frozenset({"sh", "bash", "dash", "ash", "zsh"})
"""A shell that waits for its command does not forward signals to it."""
WRAPPERS = frozenset(
    {"timeout", "time", "uv", "conda", "mamba", "micromamba", "pixi", "tini", "dumb-init", "nsys"} | {"xargs", "script"}
)
"""Programs that wait for the command that they started, and exit after it. Some pass a signal on to its whole process group."""
LAUNCHERS = frozenset(
    {"torchrun", "accelerate", "deepspeed", "colossalai", "composer", "fabric", "lightning"}
    | {"mpirun", "mpiexec", "mpiexec.hydra", "hydra_pmi_proxy", "orterun", "prterun", "prted", "orted"}
    | {"horovodrun", "srun"}
    | {"torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch"}
    | {"deepspeed.launcher.runner", "deepspeed.launcher.launch"}
)
"""Programs and modules of which it is known that they start ranks and are none themselves."""
RANK_VARIABLES = frozenset(
    {"RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "CROSS_RANK"}
    | {"TORCHELASTIC_RUN_ID", "ACCELERATE_MIXED_PRECISION"}
    | {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID", "HOROVOD_RANK"}
)
"""Variables that a launcher sets for the ranks that it starts."""


class Recipients(NamedTuple):
    """The processes below one that starts ranks which a signal concerns."""

    ranks: list[int]
    launchers: list[int]
    """Those above the ranks that must not react to it."""
    others: list[int]
    """Those above the ranks that may have a handler for it, as a shell's `trap`."""


class Signalling:
    """The signals that the processes of one attempt were sent."""

    def __init__(self) -> None:
        self.pids: set[int] = set()
        """The processes that a signal was sent to."""
        self.ended: dict[int, int] = {}
        """Launchers that the agent has ended after those, with the exit code that counts: the highest of the ranks."""
        self._held: dict[int, int] = {}
        """Launchers that are stopped until those have exited, with the signal that ends each."""

    def send(self, number: int, root: int, *, starts_ranks: bool) -> None:
        """Send a signal to a process that the agent has started, or to those below it that the signal is meant for.

        `starts_ranks`: the ranks are below it. Until they have exited, a launcher is stopped: it would kill them as soon as one exits.
        """
        table = processes_by_pid()
        found = (_ranks_below(root, table) if starts_ranks else None) or _catching_below(number, root, table)
        if found is None:
            self.pids.update(forward_signal(number, root, table))
            return
        if number in TERMINATION_SIGNALS:
            self._hold(found)
        for pid in found.ranks:
            self.pids.update(forward_signal(number, pid, table))
        for pid in found.others:
            send(number, pid)

    @property
    def running(self) -> list[int]:
        """The processes that were sent a signal and have not exited, but for launchers that wait for the others."""
        return [pid for pid in self.pids if pid not in self._held and is_alive(pid)]

    @property
    def holds(self) -> bool:
        """Whether a launcher waits for its ranks to exit. Then call `release` now and then."""
        return bool(self._held)

    def release(self) -> None:
        """End the launchers once their ranks have exited: torchrun would wait for those of the other workers."""
        if not self._held or self.running:
            return
        codes = [code for pid in self.pids if (code := exit_code(pid)) is not None]
        for launcher, number in self._held.items():
            self.ended[launcher] = max(codes, default=TERMINATED_CODE)
            send(number, launcher)
            send(signal.SIGCONT, launcher)
        self.pids.update(self._held)
        self._held = {}

    def _hold(self, found: Recipients) -> None:
        for launcher in found.launchers:
            own, theirs = _output(launcher), {file for rank in found.ranks for file in _output(rank)}
            if theirs - own and any(file.startswith("pipe:") for file in theirs - own):
                # It passes on what they print, and they would wait for it. It exits after them.
                continue
            send(signal.SIGSTOP, launcher)
            # torchrun has nothing to say but a traceback, except where it shows the files into which its ranks print.
            self._held[launcher] = signal.SIGTERM if theirs - own else signal.SIGKILL


def catching_ranks(number: int, root: int, *, starts_ranks: bool) -> list[int]:
    """Return the ranks below a process of the agent that catch the signal.

    A launcher or wrapper in Python may catch it too, and would answer in their place.
    """
    table = processes_by_pid()
    found = _ranks_below(root, table) if starts_ranks else None
    targets = [each for rank in (found.ranks if found else [root]) for each in _programs(number, rank, table)[0]]
    return [pid for pid in dict.fromkeys(targets) if catches(pid, number)]


def forward_signal(number: int, pid: int, table: Mapping[int, Process]) -> list[int]:
    """Send a signal to a process; to a shell, also to what it waits for; of a wrapper, to what it waits for alone. Returns their PIDs.

    A process that only reads what another writes, as `tee` does, is left alone: it exits after the writer, whose output it keeps.
    `table`: all processes.
    """
    targets, readers = _programs(number, pid, table)
    for each in targets:
        if each not in readers:
            send(number, each)
    return targets


def _programs(number: int, pid: int, table: Mapping[int, Process]) -> tuple[list[int], set[int]]:
    """Return the processes that a signal for `pid` is meant for, and which of them only read what others write."""
    names = _names(pid, table)
    children = [] if names.isdisjoint(SHELLS | WRAPPERS) else running_children(pid, table)
    written = {file for child in children for file in (pipe(child, 1), pipe(child, 2))} - {None}
    readers = {child for child in children if pipe(child, 0) in written and not catches(child, number)}
    targets = [] if children and names & WRAPPERS else [pid]
    for child in children:
        below, reading = ([child], set[int]()) if child in readers else _programs(number, child, table)
        targets += below
        readers |= reading
    return targets, readers


def _ranks_below(root: int, table: Mapping[int, Process]) -> Recipients | None:
    """Return the ranks that a launcher has started, and what is above them; None where nothing tells them from other processes."""
    ranks, unmarked = _marked_below(root, table)
    if not ranks:
        return None
    parents = {parent for rank in ranks for parent in _parents(rank, root, table)}
    above = [pid for pid in unmarked if pid in parents]
    launchers = [pid for pid in above if is_launcher(pid)]
    others = [pid for pid in above if pid not in launchers and not _names(pid, table) & WRAPPERS]
    return Recipients(ranks, launchers, others)


def _catching_below(number: int, root: int, table: Mapping[int, Process]) -> Recipients | None:
    """Return the processes below others that would die of the signal, and take those that catch it along; None where there are none.

    So ranks that a Python program has started save their work, whatever it has started them with. Workers of a data loader catch SIGTERM
    too: if the rank above them does not, it loses nothing when it exits after them.
    """
    targets, readers = _programs(number, root, table)
    targets = [pid for pid in targets if pid not in readers]
    shells = [pid for pid in targets if _names(pid, table) & SHELLS]
    ranks, launchers = [], list[int]()
    for pid in targets:
        below = [] if pid in shells or catches(pid, number) else _first_catching(number, pid, table)
        ranks += below or ([] if pid in shells else [pid])
        parents = {parent for each in below for parent in _parents(each, pid, table)}
        launchers += [each for each in (pid, *sorted(parents)) if below and each not in launchers]
    return Recipients(ranks, launchers, shells) if launchers else None


def _first_catching(number: int, pid: int, table: Mapping[int, Process]) -> list[int]:
    """Return the uppermost processes below this one that catch the signal."""
    found, level = list[int](), running_children(pid, table)
    while level:
        catching = [each for each in level if catches(each, number)]
        found += catching
        level = [child for each in level if each not in catching for child in running_children(each, table)]
    return found


def _marked_below(root: int, table: Mapping[int, Process]) -> tuple[list[int], list[int]]:
    """Return the uppermost processes that have other marks than `root`, and those without, level by level."""
    marks, marked, unmarked, level = _marks(root), [], [], [root]
    while level:
        children = [child for pid in level for child in running_children(pid, table)]
        found = [child for child in children if _marks(child) not in ({}, marks)]
        marked += found
        unmarked += level
        level = [child for child in children if child not in found]
    return marked, unmarked


def _names(pid: int, table: Mapping[int, Process]) -> set[str]:
    """Return the names of a program: its file's, and for a script that of its interpreter, a shell for example."""
    interpreter = next(iter(arguments(pid)), "").rpartition("/")[2].lstrip("-")
    return {table[pid].name, interpreter} if pid in table else set()


def _marks(pid: int) -> dict[str, str]:
    return {name: value for name, value in environment(pid).items() if name in RANK_VARIABLES}


def _parents(pid: int, root: int, table: Mapping[int, Process]) -> set[int]:
    found: set[int] = set()
    while pid != root and pid in table and table[pid].parent not in found:
        pid = table[pid].parent
        found.add(pid)
    return found


def is_launcher(pid: int) -> bool:
    """Return whether the first word of its command line that is neither Python nor an option names a launcher."""
    words = (word.rpartition("/")[2] for word in arguments(pid) if not word.startswith("-"))
    return next((word for word in words if not PYTHON.fullmatch(word)), "") in LAUNCHERS


def _output(pid: int) -> set[str]:
    """Return the files into which a process prints."""
    return {file for descriptor in (1, 2) if (file := open_file(pid, descriptor))}
