"""Run a program as a rank, and read what it records about itself."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.unit.agent.worker_environment import AGENT_SOURCE


def record_of(folder: Path, script: str, *arguments: str, **environment: str) -> dict[str, Any]:
    """Run a program as a rank, and return what it records."""
    (folder / "records").mkdir(exist_ok=True)
    variables = {
        "RANK": "1",
        "PYTHONPATH": f"{folder}:{AGENT_SOURCE}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "TRAINYARD_RANK_RECORDS": str(folder / "records"),
    }
    made = subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        env={"PATH": os.environ["PATH"], **variables, **environment},
        stderr=subprocess.PIPE,
    )
    made.communicate(timeout=60)
    path = folder / "records" / str(made.pid)
    return {} if not path.exists() else dict(json.loads(path.read_text()))
