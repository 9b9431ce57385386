"""`python -m dev.codegen.dashboards [ROOT]` writes ROOT/helm/trainyard/files/dashboards/*.json."""

import json
import sys
from pathlib import Path
from typing import Final

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from dev.codegen.dashboards import control, fleet, job
from dev.codegen.dashboards.build import build
from dev.codegen.dashboards.panels import Board

FOLDER: Final = "helm/trainyard/files/dashboards"
BOARDS: Final = (fleet.BOARD, job.BOARD, control.BOARD)


def text(board: Board) -> str:
    """Return the dashboard as JSON for Grafana."""
    return json.dumps(build(board), cls=JSONEncoder, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def main(arguments: list[str]) -> None:
    """Write all dashboards below ROOT, or below the current folder."""
    folder = Path(*arguments[:1]) / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    for board in BOARDS:
        (folder / f"{board.uid}.json").write_text(text(board))


if __name__ == "__main__":
    main(sys.argv[1:])
