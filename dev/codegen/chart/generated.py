"""Write the generated files of the chart."""

import json
from pathlib import Path

from dev.codegen.chart.readme import readme
from dev.codegen.chart.schema import schema


def write(folder: Path) -> None:
    """Write `values.schema.json` and `README.md` of the chart in this folder, from its `values.yaml`.

    Raises:
        CalledProcessError: helm-docs fails on the chart.
        ValueError: `values.yaml` describes a value that the model does not have.
    """
    made = schema((folder / "values.yaml").read_text())
    (folder / "values.schema.json").write_text(json.dumps(made, indent=2) + "\n")
    (folder / "README.md").write_text(readme(folder))
