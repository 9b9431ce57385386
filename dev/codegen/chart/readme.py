"""Generate the chart's README by helm-docs, from `README.md.gotmpl` and a row for each value of `values.yaml`."""

from pathlib import Path
from subprocess import run

from dev.localcluster.tools import ensure

TEMPLATE = "README.md.gotmpl"


def readme(folder: Path) -> str:
    """Return the README of the chart in this folder. Raises CalledProcessError if helm-docs fails on it."""
    helm_docs = ensure("helm-docs")["helm-docs"]
    options = ("--dry-run", "--log-level", "warning", "--sort-values-order", "file", "--template-files", TEMPLATE)
    command = [str(helm_docs), "--chart-search-root", str(folder), *options]
    made = run(command, check=True, capture_output=True, text=True).stdout
    return made.strip("\n") + "\n"
