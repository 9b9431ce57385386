"""`python -m dev.benchmarks.scale`: measures, prints a table, and writes build/bench/scale.json and scale-runs.json (of a part: scale-part)."""

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial

from dev.benchmarks.options import some_of, turns
from dev.benchmarks.scale import fleet
from dev.benchmarks.scale.api import BenchmarkError
from dev.benchmarks.scale.cluster import ground
from dev.benchmarks.scale.fleet import Outing
from dev.benchmarks.scale.results import Row, Run, plain, rows
from dev.benchmarks.scale.systems import SYSTEMS
from dev.benchmarks.scale.systems.base import Ground
from dev.benchmarks.scale.table import LEGEND, shortfalls, table
from dev.benchmarks.scale.trial import Trial
from dev.localcluster.say import complain, say
from dev.localcluster.tools import KUBERNETES_VERSION

REPEATS = 3


def main(words: Sequence[str] | None = None) -> int:
    """Measure, and return the exit code: 1 if a measurement failed."""
    options = _parser().parse_args(words)
    runs: list[Run] = []
    try:
        with ground() as place:
            for run in _measure(place, options):
                runs.append(run)
                say(_line(run))
                _write(place, runs, options)
    except BenchmarkError as error:
        complain(f"the benchmark failed: {error}")
        return 1
    except KeyboardInterrupt:
        complain(f"interrupted after {len(runs)} runs, which are saved")
        return 130
    _print(runs, options.pods)
    return 0


def _measure(place: Ground, options: argparse.Namespace) -> Iterator[Run]:
    for repeat in range(options.repeats):
        for outing in fleet.outings(options.cases, options.pods):
            for name in turns(options.systems, repeat):
                yield from _try(Trial(SYSTEMS[name], place, repeat), outing)


def _try(trial: Trial, outing: Outing) -> list[Run]:
    try:
        return trial.go(outing)
    except BenchmarkError as error:
        return trial.give_up(outing, str(error))


def _write(place: Ground, runs: Sequence[Run], options: argparse.Namespace) -> None:
    """Write the results after each run, so that they survive an interruption. A partial run never overwrites a full one."""
    stem = "scale" if options == _parser().parse_args([]) else "scale-part"
    summary = [plain(row) for row in _rows(runs)]
    machine = {
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "kubernetes": KUBERNETES_VERSION,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "pods": options.pods,
    }
    for name, content in (
        (f"{stem}.json", summary),
        (f"{stem}-runs.json", {"machine": machine, "runs": [asdict(run) for run in runs]}),
    ):
        (place.folder / name).write_text(json.dumps(content, indent=1) + "\n")


def _print(runs: Sequence[Run], pods: int) -> None:
    counts = {run.case: run.pods for run in runs}
    summary = _rows(runs)
    say(f"\n{table(summary, fleet.titles(pods), counts)}\n\n{LEGEND}\n")
    if pods != fleet.BASE_PODS:
        return  # the targets apply to the full size
    for shortfall in shortfalls(summary, counts):
        say(f"falls short: {shortfall}")


def _rows(runs: Sequence[Run]) -> list[Row]:
    return rows(runs, [name for name, system in SYSTEMS.items() if system.uses_job_controller])


def _line(run: Run) -> str:
    times = ", ".join(
        f"{name} {value:.2f} s"
        for name in ("created", "running", "status", "cpu")
        if (value := getattr(run, f"{name}_s"))
    )
    return f"{time.strftime('%H:%M:%S')} ({run.case}) {run.system}: {times} {run.note}".rstrip()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m dev.benchmarks.scale", description=__doc__)
    parser.add_argument("--cases", type=partial(some_of, list(fleet.CASES)), default=list(fleet.CASES), metavar="a,b,…")
    parser.add_argument("--systems", type=partial(some_of, list(SYSTEMS)), default=list(SYSTEMS), metavar="NAME,…")
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument(
        "--pods", type=int, default=fleet.BASE_PODS, help="of case a; the others grow and shrink with it"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
