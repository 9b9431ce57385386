"""Writes what is generated of the chart: `values.schema.json`, and by helm-docs its README. `python -m dev.codegen.chart [ROOT]`."""

import sys
from pathlib import Path

from dev.codegen.chart import generated


def main(arguments: list[str]) -> int:
    """Write both files."""
    generated.write((Path(arguments[0]) if arguments else Path.cwd()) / "helm/trainyard")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
