"""`python -m dev.benchmarks.frameworks`: measure, print a table, and write build/bench/frameworks.json and frameworks-runs.json.

`--resume` continues an interrupted run of the same command.
"""

import argparse
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from dev.benchmarks.frameworks.catalog import FAULTS, FRAMEWORKS, Framework
from dev.benchmarks.frameworks.ratios import ratios
from dev.benchmarks.frameworks.trial import FrameworkTrial
from dev.benchmarks.options import some_of, turns
from dev.benchmarks.recovery import operators
from dev.benchmarks.recovery.faults import NODES
from dev.benchmarks.recovery.record import Record, machine
from dev.benchmarks.recovery.results import Run, rows
from dev.benchmarks.recovery.series import Series, keep
from dev.benchmarks.recovery.table import shortfalls, table
from dev.benchmarks.scale.api import BenchmarkError
from dev.benchmarks.scale.child import ROOT
from dev.benchmarks.scale.cluster import FOLDER, ground
from dev.benchmarks.scale.systems.base import Ground
from dev.localcluster import images
from dev.localcluster.errors import LocalClusterError
from dev.localcluster.say import complain, say
from dev.localcluster.shape import Profile, Shape

REPEATS: Final = 3
GPUS: Final = 8


def main(words: Sequence[str] | None = None) -> int:
    """Measure, and return the exit code: 1 if a measurement failed."""
    options = _parser().parse_args(words)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # clean up after a timeout as after Ctrl-C
    out: Path = options.out
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        archives = images.build("operator", *{FRAMEWORKS[name].image for name in options.frameworks})
        record = Record(out, machine(), resume=options.resume)
        with ground(Shape(NODES, GPUS, Profile.STANDARD)) as place:
            for archive in archives:
                _load(archive)
            _all(place, options, record)
    except (BenchmarkError, LocalClusterError) as error:
        complain(f"the benchmark failed: {error}")
        return 1
    except KeyboardInterrupt:
        complain("interrupted: the measurements so far are saved")
        return 130
    return 0


def _all(place: Ground, options: argparse.Namespace, record: Record) -> None:
    try:
        keep(_measure(place, options, record), record)
    finally:
        if record.runs:
            _print(record.runs)


def _measure(place: Ground, options: argparse.Namespace, record: Record) -> Iterator[Run]:
    for name in options.frameworks:
        framework = FRAMEWORKS[name]
        wanted = [fault.name for fault in framework.faults if fault.name in options.faults]
        for repeat in range(options.repeats):
            for system in turns(list(framework.systems()), repeat):
                if faults := record.missing(system, repeat, wanted):
                    yield from _one(place, framework, system, repeat, [*faults], record)


def _one(
    place: Ground, framework: Framework, name: str, repeat: int, faults: list[str], record: Record
) -> Iterator[Run]:
    system, operator = framework.systems()[name]
    log = place.folder / "logs" / f"frameworks-{framework.image}-{name}-{repeat}.log"
    with operators.started(operator, place, log) as running:
        trial = FrameworkTrial(system, running, place, framework.program)
        yield from Series(record, FAULTS).measure(trial, name, repeat, faults)


def _load(archive: Path) -> None:
    command = [sys.executable, "-m", "dev.localcluster", "load", str(archive)]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    if done.returncode:
        raise BenchmarkError(f"the image was not loaded: {done.stdout}{done.stderr}")


def _print(runs: Sequence[Run]) -> None:
    summary = rows(runs)
    say(f"\n{table(summary, {name: fault.title for name, fault in FAULTS.items()})}\n")
    for ratio in ratios(summary):
        say(str(ratio))
    for shortfall in shortfalls(summary, {}):
        say(f"falls short: {shortfall}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m dev.benchmarks.frameworks", description=__doc__)
    parser.add_argument(
        "--frameworks", type=partial(some_of, list(FRAMEWORKS)), default=list(FRAMEWORKS), metavar="NAME,…"
    )
    parser.add_argument("--faults", type=partial(some_of, list(FAULTS)), default=list(FAULTS), metavar="NAME,…")
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--resume", action="store_true", help="continue an interrupted run")
    parser.add_argument("--out", type=Path, default=FOLDER / "frameworks.json", metavar="FILE")
    return parser


if __name__ == "__main__":
    sys.exit(main())
