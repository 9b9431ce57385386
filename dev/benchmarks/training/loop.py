"""`python -m dev.benchmarks.training.loop`: the programs take turns on one machine; a line of JSON for each turn of each.

All programs start once and train continuously; a program that does not have its turn is paused (SIGSTOP). A program is
measured by the lines that it prints. Runs where torch is installed; `python -m dev.benchmarks.training` reads the results.
"""

import argparse
import json
import platform
import queue
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from itertools import pairwise
from pathlib import Path
from typing import IO, Final, NamedTuple

from dev.benchmarks.options import some_of, turns
from dev.benchmarks.training.ranks import Group, free_port, started
from dev.benchmarks.training.sizes import SIZES

SYSTEMS: Final = {
    "plain": "plain_loop",
    "trainyard": "trainyard_loop",
    "trainyard-torchrun": "trainyard_loop",
    "accelerate": "accelerate_loop",
    "fabric": "fabric_loop",
}
"""Each with its program. `trainyard` runs as under the agent; with `-torchrun`, processes agree by themselves when to end."""
UNDER_AGENT: Final = frozenset({"trainyard"})
ENDLESS: Final = 10**7
"""Steps: more than are done."""
PATIENCE_SECONDS: Final = 120.0
LINE: Final = re.compile(r"step (\d+) loss \S+")


@dataclass(frozen=True, slots=True)
class Turn:
    """A turn of one program.

    Attributes:
        system: whose.
        size: of the task.
        world: processes.
        number: of the turn, from 0 on.
        step_seconds: the mean time of a step, from each line that it has printed to the next.
        cpu_seconds: the mean CPU time of a step over all its processes and threads, for the same intervals.
    """

    system: str
    size: str
    world: int
    number: int
    step_seconds: list[float]
    cpu_seconds: list[float]


class Mark(NamedTuple):
    """A line of a program: its time, its step, and the CPU time of all processes so far. Times are in seconds."""

    at: float
    step: int
    cpu: float


class StoppedError(Exception):
    """A program exited, or printed nothing for PATIENCE_SECONDS."""


class Competitor:
    """A program that trains while it is its turn.

    Args:
        name: one of SYSTEMS.
        processes: all of them.
        errors: the file that its errors go to.
    """

    def __init__(self, name: str, processes: Sequence[subprocess.Popen[str]], errors: Path) -> None:
        self.name, self._processes, self._errors = name, processes, errors
        self._lines: queue.Queue[Mark | None] = queue.Queue()
        out = processes[0].stdout
        if out is None:
            raise ValueError(f"the output of {name} must be a pipe")
        threading.Thread(target=self._read, args=(out,), daemon=True).start()

    def go(self) -> None:
        """Start its turn, and drop earlier lines."""
        while not self._lines.empty():
            self._lines.get()
        self._signal(signal.SIGCONT)

    def pause(self) -> None:
        """End its turn."""
        self._signal(signal.SIGSTOP)

    def line(self) -> Mark:
        """The next line.

        Raises:
            StoppedError: there is none. The message contains the last lines of its stderr.
        """
        try:
            found = self._lines.get(timeout=PATIENCE_SECONDS)
        except queue.Empty:
            found = None
        if found is None:
            errors = self._errors.read_text(errors="replace").splitlines()[-20:]
            raise StoppedError("\n".join([f"{self.name} exited, or printed nothing", *errors]))
        return found

    def _signal(self, number: signal.Signals) -> None:
        for each in self._processes:
            each.send_signal(number)

    def _read(self, out: IO[str]) -> None:
        with out:
            for text in out:
                now = time.perf_counter()
                if found := LINE.match(text):
                    self._lines.put(Mark(now, int(found[1]), sum(cpu(each.pid) for each in self._processes)))
        self._lines.put(None)


def cpu(pid: int, proc: Path = Path("/proc")) -> float:
    """Seconds that the threads which a process has now have run so far; 0 where there is no such process any more."""
    total = 0
    # It may end while its threads are listed, too.
    with suppress(OSError):
        for each in (proc / str(pid) / "task").glob("*/schedstat"):
            with suppress(OSError):
                total += int(each.read_text().split()[0])
    return total / 1e9


def measure(
    competitors: Mapping[str, Competitor], size: str, world: int, repeats: int, segments: int
) -> Iterator[Turn]:
    """Turn by turn, each program once in a turn, and another one first each time."""
    for number in range(repeats):
        for name in turns([*competitors], number):
            one = competitors[name]
            one.go()
            # From the first line on: the step in which it was stopped, and cold caches, are before it.
            marks = [one.line() for _ in range(segments + 1)]
            one.pause()
            seconds = [(then.at - now.at) / (then.step - now.step) for now, then in pairwise(marks)]
            worked = [(then.cpu - now.cpu) / (then.step - now.step) for now, then in pairwise(marks)]
            yield Turn(name, size, world, number, seconds, worked)


@contextmanager
def ready(names: Sequence[str], size: str, world: int, folder: Path) -> Iterator[dict[str, Competitor]]:
    """All programs, each in the middle of its training, and standing still."""
    with ExitStack() as stack:
        # In memory, as the agent has it.
        reports = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="trainyard-bench-", dir="/dev/shm")))
        made: dict[str, Competitor] = {}
        for name in names:
            own = folder / f"{name}-{size}-{world}"
            own.mkdir()
            errors = own / "errors"
            sink = stack.enter_context(errors.open("w"))
            words = [
                f"dev.benchmarks.training.programs.{SYSTEMS[name]}",
                *("--size", size, "--steps", str(ENDLESS), "--total", str(ENDLESS), "--save-every", str(ENDLESS)),
                *("--print-every", str(SIZES[size].print_every), "--folder", str(own / "kept")),
            ]
            (own / "kept").mkdir()
            processes = stack.enter_context(
                started(
                    words,
                    Group(world, count=world, port=free_port()),
                    first_output=subprocess.PIPE,
                    errors=sink.fileno(),
                    more=partial(_agent, name, world, reports),
                )
            )
            made[name] = Competitor(name, processes, errors)
            made[name].line()
            made[name].pause()
        yield made


def _agent(name: str, world: int, folder: Path, local: int) -> Mapping[str, str]:
    """Return the variables that the agent sets for a rank: the progress file, and the rank of a single process."""
    if name not in UNDER_AGENT:
        return {}
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    return {"TRAINYARD_PROGRESS_FILE": str(folder / f"progress-{local}"), **(alone if world == 1 else {})}


def _versions() -> dict[str, str]:
    """Return the installed versions of the measured packages."""
    found = {"python": platform.python_version()}
    for name in ("torch", "accelerate", "lightning"):
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def main() -> int:
    """Run the command, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m dev.benchmarks.training.loop", description=__doc__)
    parser.add_argument("--systems", type=lambda text: some_of(list(SYSTEMS), text), default=list(SYSTEMS))
    parser.add_argument("--sizes", type=lambda text: some_of(list(SIZES), text), default=list(SIZES))
    parser.add_argument("--worlds", type=lambda text: [int(word) for word in text.split(",")], default=[2, 1])
    parser.add_argument("--repeats", type=int, default=8)
    parser.add_argument("--segments", type=int, default=3, help="measured lines per turn")
    options = parser.parse_args()
    print(json.dumps({"versions": _versions()}), flush=True)  # noqa: T201 - read by the parent process
    # Paused programs are killed by SIGKILL when the `with` block exits.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="trainyard-bench-") as name:
        for world in options.worlds:
            for size in options.sizes:
                try:
                    with ready(options.systems, size, world, Path(name)) as competitors:
                        for turn in measure(competitors, size, world, options.repeats, options.segments):
                            print(json.dumps({"turn": asdict(turn)}), flush=True)  # noqa: T201 - read by the parent process
                except StoppedError as error:
                    print(error, file=sys.stderr)  # noqa: T201 - read by the parent process
                    return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
