"""`python -m dev.benchmarks.recovery`: measure, print a table, and write build/bench/recovery.json and recovery-runs.json.

`--resume` continues an interrupted run of the same command. With `--goodput MINUTES` or `--away MINUTES` it measures
that instead, into recovery-goodput.json or recovery-away.json. The exit code of `--goodput` is also 1 if the job's
goodput differs by more than 2 points from that of its logs.
"""

import argparse
import json
import signal
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from dev.benchmarks.options import some_of, turns
from dev.benchmarks.recovery import goodput, operators
from dev.benchmarks.recovery.faults import FAULTS, NODES
from dev.benchmarks.recovery.record import Record, machine
from dev.benchmarks.recovery.results import Run, rows
from dev.benchmarks.recovery.series import Series, keep
from dev.benchmarks.recovery.systems import DEFAULT, SYSTEMS
from dev.benchmarks.recovery.table import shortfalls, table
from dev.benchmarks.recovery.trial import Trial
from dev.benchmarks.scale.api import BenchmarkError
from dev.benchmarks.scale.cluster import FOLDER, ground
from dev.benchmarks.scale.systems.base import Ground
from dev.localcluster.errors import LocalClusterError
from dev.localcluster.say import complain, say
from dev.localcluster.shape import Profile, Shape

REPEATS: Final = 10
GPUS: Final = 8


def main(words: Sequence[str] | None = None) -> int:
    """Measure, and return the exit code: 1 if a measurement failed or the reported goodput is wrong."""
    options = _parser().parse_args(words)
    measure = _stretch if options.goodput or options.away else _faults
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # clean up after a timeout as after Ctrl-C
    try:
        with ground(Shape(NODES, GPUS, Profile.STANDARD)) as place:
            out = _out(options)
            out.parent.mkdir(parents=True, exist_ok=True)
            return measure(place, options, out)
    except (BenchmarkError, LocalClusterError) as error:
        complain(f"the benchmark failed: {error}")
        return 1
    except KeyboardInterrupt:
        complain("interrupted: the measurements so far are saved")
        return 130


def _faults(place: Ground, options: argparse.Namespace, out: Path) -> int:
    record = Record(out, machine(), resume=options.resume)
    try:
        keep(_measure(place, options, record), record)
    finally:
        if record.runs:
            _print(record.runs)
    return 0


def _stretch(place: Ground, options: argparse.Namespace, out: Path) -> int:
    kind = "goodput" if options.goodput else "away"
    script = goodput.mixed(options.goodput, options.faults) if options.goodput else goodput.away(options.away)
    found: list[goodput.Goodput] = []
    for name in options.systems:
        with operators.running(name, place, _log(place, name, kind)) as operator:
            found.append(goodput.Stretch(Trial(SYSTEMS[name], operator, place), script, say).go())
        text = json.dumps([goodput.plain(each) for each in found], indent=1)
        out.with_name(f"{out.stem}-{kind}.json").write_text(f"{text}\n")
    say(f"\n{goodput.table(found)}")
    # The peers report no goodput.
    own = [row for row in found if SYSTEMS[row.system].reports_goodput] if options.goodput else []
    for row in own:
        say(goodput.verdict(row))
    return 0 if all(map(goodput.agrees, own)) else 1


def _measure(place: Ground, options: argparse.Namespace, record: Record) -> Iterator[Run]:
    series = Series(record, FAULTS)
    for repeat in range(options.repeats):
        for name in turns(options.systems, repeat):
            if faults := record.missing(name, repeat, options.faults):
                with operators.running(name, place, _log(place, name, repeat)) as operator:
                    yield from series.measure(Trial(SYSTEMS[name], operator, place), name, repeat, [*faults])


def _out(options: argparse.Namespace) -> Path:
    """Return the output file. A partial run never overwrites the results of a full run."""
    whole = (options.systems, options.faults, options.repeats) == (list(DEFAULT), list(FAULTS), REPEATS)
    chosen: Path | None = options.out
    return chosen or FOLDER / ("recovery.json" if whole else "recovery-part.json")


def _log(place: Ground, name: str, run: object) -> Path:
    return place.folder / "logs" / f"recovery-{name}-{run}.log"


def _print(runs: Sequence[Run]) -> None:
    summary = rows(runs)
    titles = {name: f"{name}: {fault.title}" for name, fault in FAULTS.items()}
    say(f"\n{table(summary, titles)}\n")
    for shortfall in shortfalls(summary, {name: fault.aim for name, fault in FAULTS.items() if fault.aim}):
        say(f"falls short: {shortfall}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m dev.benchmarks.recovery", description=__doc__)
    parser.add_argument("--systems", type=partial(some_of, list(SYSTEMS)), default=list(DEFAULT), metavar="NAME,…")
    parser.add_argument("--faults", type=partial(some_of, list(FAULTS)), default=list(FAULTS), metavar="NAME,…")
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--resume", action="store_true", help="continue an interrupted run")
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument(
        "--goodput", type=int, metavar="MINUTES", help="instead: measure goodput with one fault per minute"
    )
    instead.add_argument("--away", type=int, metavar="MINUTES", help="instead: stop the operator for this time")
    parser.add_argument("--out", type=Path, metavar="FILE", help="default: build/bench/recovery.json")
    return parser


if __name__ == "__main__":
    sys.exit(main())
