"""`python -m dev.benchmarks.training`: measure, print tables, and write build/bench/training.json.

Three parts: the loop beside a plain one, Accelerate and Lightning Fabric; checkpoints beside torch's own; ways to communicate less over a slow
link. Programs run in the trainer image (root); with `--with COMMAND` by that command instead, such as `env` where this machine's python3 has torch.
"""

import argparse
import json
import os
import platform
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import IO, Any, Final

from dev.benchmarks.options import some_of
from dev.benchmarks.scale.api import BenchmarkError
from dev.benchmarks.training import link
from dev.benchmarks.training.figures import Record, SaveRow, links, loops, restores, saves
from dev.benchmarks.training.lines import counted
from dev.benchmarks.training.loop import SYSTEMS
from dev.benchmarks.training.table import link_table, loop_table, save_table, shortfalls
from dev.localcluster import inside
from dev.localcluster.errors import LocalClusterError
from dev.localcluster.say import complain, say

FOLDER: Final = Path("build/bench")
PROGRAMS: Final = Path(__file__).parent / "programs"
PARTS: Final = ("loop", "checkpoints", "link")
RANKS_PER_GROUP: Final = 2
PORT: Final = 29400
"""Free, because the ranks run in network namespaces of this benchmark."""

Enter = Callable[[Sequence[str]], list[str]]


def main(words: Sequence[str] | None = None) -> int:
    """Measure, and return the exit code: 1 if a measurement failed."""
    options = _parser().parse_args(words)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # clean up after a timeout as after Ctrl-C
    FOLDER.mkdir(parents=True, exist_ok=True)
    out: Path = options.out or FOLDER / ("training.json" if _whole(options) else "training-part.json")
    found: dict[str, Any] = {"machine": _machine(), "lines": _lines(), "records": []}
    try:
        with entering(options.by) as enter, (FOLDER / "training.log").open("w") as log:
            for part in options.parts:
                say(f"{time.strftime('%H:%M:%S')} {part}, load average {os.getloadavg()[0]:.1f}")
                for record in _measured(part, options, enter, log):
                    found["records"].append(record)
    except (BenchmarkError, LocalClusterError) as error:
        complain(f"the benchmark failed: {error}")
        return 1
    except KeyboardInterrupt:
        complain("interrupted")
        return 130
    finally:
        if found["records"]:
            out.write_text(json.dumps(found | _rows(found["records"]), indent=1) + "\n")
    say(f"\n{_tables(found['records'], found['lines'])}\n")
    return 0


@contextmanager
def entering(by: str | None) -> Iterator[Enter]:
    """Yield a function that wraps a command so that it runs where torch is installed."""
    if by:
        yield lambda command: [*shlex.split(by), *command]
        return
    with inside.entered("trainer") as enter:
        yield enter


def _measured(part: str, options: argparse.Namespace, enter: Enter, log: IO[str]) -> Iterator[Record]:
    """Yield the records of one part."""
    repeats = [] if options.repeats is None else ["--repeats", str(options.repeats)]
    match part:
        case "loop":
            module = "dev.benchmarks.training.loop"
            yield from _records(
                [enter(["python3", "-m", module, "--systems", ",".join(options.systems), *repeats])], log
            )
        case "checkpoints":
            yield from _records([enter(_ranks(0, 2, 2, "dev.benchmarks.training.saving", *repeats))], log)
        case _:
            for mbit in options.mbit:
                yield from _over(mbit, repeats, enter, log)


def _over(mbit: int, repeats: Sequence[str], enter: Enter, log: IO[str]) -> Iterator[Record]:
    """Yield the records of a link of this rate, with one replica group at each end."""
    with link.cable(mbit):
        commands = []
        for index, name in enumerate(link.NAMESPACES):
            first, world = index * RANKS_PER_GROUP, RANKS_PER_GROUP * len(link.NAMESPACES)
            meet = ("--address", link.ADDRESSES[0], "--port", str(PORT), "--interface", link.INTERFACE)
            words = ("dev.benchmarks.training.exchange", "--interface", link.INTERFACE, *repeats)
            ranks = _ranks(first, RANKS_PER_GROUP, world, *meet, *words)
            commands.append(link.within(name, enter(ranks)))
        for record in _records(commands, log):
            yield {kind: {**figures, "mbit": mbit} for kind, figures in record.items()}


def _ranks(first: int, count: int, world: int, *words: str) -> list[str]:
    numbers = {"first": first, "count": count, "world": world}
    arguments = [word for name, number in numbers.items() for word in (f"--{name}", str(number))]
    return ["python3", "-m", "dev.benchmarks.training.ranks", *arguments, *words]


def _records(commands: Sequence[Sequence[str]], log: IO[str]) -> Iterator[Record]:
    """Run all commands, and yield the JSON lines that the first one prints.

    Raises:
        BenchmarkError: a command failed; the message names the log file.
    """
    with ExitStack() as stack:
        made: list[subprocess.Popen[str]] = []
        for command in commands:
            out = log if made else subprocess.PIPE
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=log, text=True)
            stack.enter_context(process)
            # On SIGTERM, it also stops its own child processes.
            stack.callback(process.terminate)
            made.append(process)
            if len(made) > 1:
                threading.Thread(target=_ends_with, args=(made[0], process), daemon=True).start()
        for line in made[0].stdout or ():
            if line.startswith("{"):
                say(f"  {line.strip()[:160]}")
                yield json.loads(line)
        if codes := [code for each in made if (code := each.wait())]:
            raise BenchmarkError(f"a program exited with code {codes[0]}; see its output in {log.name}")


def _ends_with(first: subprocess.Popen[str], other: subprocess.Popen[str]) -> None:
    """Terminate the first process if the other one fails."""
    if other.wait():
        first.terminate()


def _rows(records: Sequence[Record]) -> dict[str, Any]:
    """Return the rows of the tables as JSON."""
    kept = _by_kind(records)
    rows: dict[str, Any] = {"loop": loops(kept["turn"]), "link": links(kept["exchanged"])}
    if kept["default"]:
        rows["checkpoints"] = saves(kept["saved"], kept["default"][0]["interval"])
        rows["restore"] = restores(kept["restored"])
    plain = {name: [asdict(row) for row in of_part] for name, of_part in rows.items() if of_part}
    return {"versions": kept["versions"][0], **plain} if kept["versions"] else plain


def _tables(records: Sequence[Record], lines: dict[str, int]) -> str:
    kept = _by_kind(records)
    loop_rows = loops(kept["turn"])
    save_rows: list[SaveRow] = []
    blocks = [loop_table(loop_rows, lines)] if loop_rows else []
    if kept["default"]:
        interval = kept["default"][0]["interval"]
        save_rows = saves(kept["saved"], interval)
        blocks.append(save_table(save_rows, restores(kept["restored"]), kept["state"][0]["bytes"], interval))
    if link_rows := links(kept["exchanged"]):
        blocks.append(link_table(link_rows))
    return "\n\n".join([*blocks, *(f"falls short: {each}" for each in shortfalls(loop_rows, save_rows))])


def _by_kind(records: Sequence[Record]) -> dict[str, list[Record]]:
    kinds = ("versions", "turn", "state", "saved", "default", "restored", "exchanged")
    return {kind: [record[kind] for record in records if kind in record] for kind in kinds}


def _lines() -> dict[str, int]:
    return {name: counted((PROGRAMS / f"{program}.py").read_text()) for name, program in SYSTEMS.items()}


def _machine() -> dict[str, Any]:
    return {
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "load": os.getloadavg()[0],
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _whole(options: argparse.Namespace) -> bool:
    """Return whether this is a full run. A partial run never overwrites its results."""
    return (options.parts, options.systems, options.repeats) == (list(PARTS), list(SYSTEMS), None)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m dev.benchmarks.training", description=__doc__)
    parser.add_argument("--parts", type=partial(some_of, list(PARTS)), default=list(PARTS), metavar="NAME,…")
    parser.add_argument("--systems", type=partial(some_of, list(SYSTEMS)), default=list(SYSTEMS), metavar="NAME,…")
    parser.add_argument("--repeats", type=int, help="repetitions of each measurement (default: 8, 5 and 3)")
    parser.add_argument("--mbit", type=lambda text: [int(word) for word in text.split(",")], default=[50, 500])
    parser.add_argument(
        "--with", dest="by", metavar="COMMAND", help="run programs by this command instead of in the trainer image"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="default: build/bench/training.json")
    return parser


if __name__ == "__main__":
    sys.exit(main())
