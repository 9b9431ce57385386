"""Plant mistakes into packages, one at a time, and report those that no test notices."""

import argparse
import os
import resource
import sys
import tempfile
import time
import tomllib
from pathlib import Path

from dev.mutation.mutants import choose, modules, mutants
from dev.mutation.report import AcceptedError, Report, check_accepted, read_accepted
from dev.mutation.run import BaselineError, Project, Result, RunError, prepare, run

ROOT = Path(__file__).parents[2]
PACKAGES = ["operator/trainyard/domain", "operator/trainyard/engine"]
TESTS = ["tests/unit/domain", "tests/unit/engine", "tests/unit/controller", "tests/unit/coordinator"]
# The two that play the operator itself, with few schedules.
SIMULATION = ["tests/simulation/test_plan_properties.py", "tests/simulation/test_engine.py"]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m dev.mutation", description=__doc__)
    parser.add_argument("--root", type=Path, default=ROOT, help="the project (default: this repository)")
    parser.add_argument("--package", action="append", help="a folder to mutate, below the root; may be repeated")
    parser.add_argument("--tests", action="append", help="a folder of unit tests, below the root; may be repeated")
    parser.add_argument("--no-simulation", action="store_true", help="leave out the simulation of what survives")
    parser.add_argument("--mutants", type=int, default=300, help="how many to choose (default: 300)")
    parser.add_argument("--seed", type=int, default=1, help="which are chosen (default: 1)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one a processor)")
    parser.add_argument(
        "--least", type=float, default=95.0, help="the killed share below which the run fails, in percent"
    )
    parser.add_argument("--accepted", type=Path, default=Path(__file__).parent / "accepted.toml")
    return parser.parse_args()


def _write(line: str) -> None:
    """Write a line at once: a run of half an hour is watched."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> int:
    """Run the command. Return 0, 1 below the least share, or 2 where the run itself is not possible."""
    options, started = _arguments(), time.monotonic()
    root = options.root.resolve()
    simulation = SIMULATION if root == ROOT and not options.no_simulation else []
    project = Project(root, options.package or PACKAGES, options.tests or TESTS, simulation)
    configuration = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    found = [
        mutant
        for package in project.packages
        for module in modules(root, package, configuration.get("pythonpath", ["."]))
        for mutant in mutants(module)
    ]
    chosen = choose(found, options.mutants, options.seed)
    done = 0

    def note(result: Result) -> None:
        nonlocal done
        done += 1
        fate = f"killed by {result.killer}" if result.killed_in else "SURVIVED"
        _write(f"[{done}/{len(chosen)}] {result.mutant.where} {result.mutant.change.operator}: {fate}")

    try:
        accepted = read_accepted(options.accepted)
        check_accepted(accepted, found)
        _write(f"{len(found)} possible mutants, {len(chosen)} chosen by seed {options.seed}; measuring the tests")
        with tempfile.TemporaryDirectory() as folder:
            reach = prepare(project, Path(folder))
    except (AcceptedError, BaselineError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    _write(f"measured in {time.monotonic() - started:.0f} s")
    try:
        report = Report(run(project, reach, chosen, options.jobs, note), accepted)
    except RunError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = f"{time.monotonic() - started:.0f} s, {usage.ru_utime + usage.ru_stime:.0f} s of processor time"
    _write(f"\n{report.text()}\n\n{len(chosen)} mutants in {spent}")
    return 0 if report.share() * 100 >= options.least else 1


if __name__ == "__main__":
    sys.exit(main())
