"""Writes what is generated of the chart: `values.schema.json`, and by helm-docs its README. `python -m chart [ROOT]`."""

import json
import sys
from pathlib import Path

from chart.readme import readme
from chart.schema import schema


def main(arguments: list[str]) -> int:
    """Write both files."""
    folder = (Path(arguments[0]) if arguments else Path.cwd()) / "helm/trainyard"
    made = schema((folder / "values.yaml").read_text())
    (folder / "values.schema.json").write_text(json.dumps(made, indent=2) + "\n")
    (folder / "README.md").write_text(readme(folder))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
