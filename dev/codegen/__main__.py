"""`python -m dev.codegen [--root ROOT] [STEP …]`: write all generated files, or those of the steps named. What `make generate` runs."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from dev.codegen.chart import generated
from dev.codegen.dashboards import __main__ as dashboards
from trainyard.api import __main__ as api
from trainyard.controller.metrics import reference


def crd(root: Path) -> None:
    """Write the CRD into `crds/` and into the chart."""
    api.main(["crds", str(root)])


def pages(root: Path) -> None:
    """Write the pages of `docs/reference` that are made from the API's docstrings and enums."""
    api.main(["docs", str(root)])


def metrics(root: Path) -> None:
    """Write `docs/reference/metrics.md` from the metrics that the operator registers."""
    reference.main([str(root)])


def boards(root: Path) -> None:
    """Write the chart's Grafana dashboards."""
    dashboards.main([str(root)])


def chart(root: Path) -> None:
    """Write the schema of the chart's values, and by helm-docs its README."""
    generated.write(root / "helm/trainyard")


STEPS: Final[dict[str, Callable[[Path], None]]] = {
    "crd": crd,
    "pages": pages,
    "metrics": metrics,
    "dashboards": boards,
    "chart": chart,
}


def main(arguments: list[str] | None = None) -> int:
    """Run the steps; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m dev.codegen", description="Write the generated files.")
    parser.add_argument("steps", nargs="*", metavar="|".join(STEPS), help="the steps to run (default: all)")
    parser.add_argument("--root", type=Path, default=Path.cwd(), help="the repository (default: this folder)")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.steps if name not in STEPS]:
        parser.error(f"unknown step {unknown[0]}: choose from {', '.join(STEPS)}")
    for name, step in STEPS.items():
        if name in (options.steps or STEPS):
            step(options.root)
    return 0


if __name__ == "__main__":
    sys.exit(main())
