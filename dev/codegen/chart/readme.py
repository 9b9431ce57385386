"""The chart's README, by helm-docs: the text of `README.md.gotmpl`, and a row for each value as `values.yaml` has it."""

from pathlib import Path
from subprocess import run

from dev.localcluster.tools import ensure

TEMPLATE = "README.md.gotmpl"


def readme(folder: Path) -> str:
    """Its text, from the chart in this folder. Raises CalledProcessError where helm-docs does not understand it."""
    helm_docs = ensure("helm-docs")["helm-docs"]
    options = ("--dry-run", "--log-level", "warning", "--sort-values-order", "file", "--template-files", TEMPLATE)
    command = [str(helm_docs), "--chart-search-root", str(folder), *options]
    made = run(command, check=True, capture_output=True, text=True).stdout
    return made.strip("\n") + "\n"
