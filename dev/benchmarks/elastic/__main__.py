"""`python -m dev.benchmarks.elastic`: measures, prints a table, and writes build/bench/elastic.json and elastic-runs.json."""

import argparse
import json
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Final

from dev.benchmarks.elastic import course
from dev.benchmarks.elastic.results import Change, plain, rows, shortfalls, table
from dev.benchmarks.elastic.systems import SYSTEMS
from dev.benchmarks.options import some_of, turns
from dev.benchmarks.recovery import operators
from dev.benchmarks.scale.api import BenchmarkError
from dev.benchmarks.scale.cluster import FOLDER, ground
from dev.benchmarks.scale.systems.base import Ground
from dev.localcluster.errors import LocalClusterError
from dev.localcluster.say import complain, say
from dev.localcluster.shape import Profile, Shape

NODES: Final = 3
GPUS: Final = 8
REPEATS: Final = 5


def main(words: Sequence[str] | None = None) -> int:
    """Measure. Returns the exit code: 1 where something could not be measured at all."""
    options = _parser().parse_args(words)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a time-out clears up as Ctrl-C does
    changes: list[Change] = []
    code = 0
    try:
        with ground(Shape(NODES, GPUS, Profile.STANDARD)) as place:
            _measure(place, options, changes)
    except (BenchmarkError, LocalClusterError) as error:
        complain(f"the benchmark ends: {error}")
        code = 1
    except KeyboardInterrupt:
        complain("interrupted: what was measured is on file")
        code = 130
    if changes:
        found = rows(changes)
        say(f"\n{table(found, {event.name: event.title for event in course.EVENTS})}\n")
        for shortfall in shortfalls(found):
            say(f"falls short: {shortfall}")
    return code


def _measure(place: Ground, options: argparse.Namespace, changes: list[Change]) -> None:
    out: Path = options.out
    out.parent.mkdir(parents=True, exist_ok=True)
    for repeat in range(options.repeats):
        for name in turns(options.systems, repeat):
            system = SYSTEMS[name]
            log = place.folder / "logs" / f"elastic-{name}-{repeat}.log"
            with operators.running(system.operator, place, log):
                for change in course.run(system, place, repeat):
                    changes.append(change)
                    say(_line(change))
                    out.write_text(json.dumps([plain(row) for row in rows(changes)], indent=1) + "\n")
                    every = json.dumps([asdict(each) for each in changes], indent=1)
                    out.with_name(f"{out.stem}-runs.json").write_text(f"{every}\n")


def _line(change: Change) -> str:
    if change.seconds is None:
        came = "never"
    else:
        came = f"{change.seconds:.1f} s, {change.idle:.1f} s of them idle, {change.lost_steps} steps done again"
    return f"{time.strftime('%H:%M:%S')} {change.event} {change.system}: {came}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m dev.benchmarks.elastic", description=__doc__)
    parser.add_argument("--systems", type=partial(some_of, list(SYSTEMS)), default=list(SYSTEMS), metavar="NAME,…")
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--out", type=Path, default=FOLDER / "elastic.json", metavar="FILE")
    return parser


if __name__ == "__main__":
    sys.exit(main())
