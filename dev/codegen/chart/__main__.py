"""`python -m dev.codegen.chart [ROOT]` generates the chart's `values.schema.json`, and by helm-docs its README."""

import sys
from pathlib import Path

from dev.codegen.chart import generated


def main(arguments: list[str]) -> int:
    """Write both files below ROOT, or below the current folder."""
    generated.write((Path(arguments[0]) if arguments else Path.cwd()) / "helm/trainyard")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
