"""A real MLflow server for tests, which can be killed and started again."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING
from urllib import request
from urllib.error import URLError

from tests.library.support.programs import free_port

if TYPE_CHECKING:
    from pathlib import Path

PATIENCE = 120.0


class Tracker:
    """`mlflow server` on a port of this machine, with a database and its artifacts in a folder.

    It is the very application that `mlflow server` has uvicorn run, in one process in place of five.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        database = f"sqlite:///{self.folder / 'mlflow.db'}"
        settings = {
            "_MLFLOW_SERVER_FILE_STORE": database,
            "_MLFLOW_SERVER_REGISTRY_STORE": database,
            "_MLFLOW_SERVER_ARTIFACT_ROOT": "mlflow-artifacts:/",
            "_MLFLOW_SERVER_ARTIFACT_DESTINATION": str(self.folder / "artifacts"),
            "_MLFLOW_SERVER_SERVE_ARTIFACTS": "true",
            "MLFLOW_DISABLE_TELEMETRY": "true",
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        }
        command = ["-m", "uvicorn", "--host", "127.0.0.1", "--port", str(self.port), "mlflow.server.fastapi_app:app"]
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, *command], env={**os.environ, **settings}, stdout=log, stderr=log
            )
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until and self._process.poll() is None:
            with suppress(URLError, OSError):
                # The first one makes the database.
                request.urlopen(f"{self.url}/api/2.0/mlflow/experiments/search?max_results=1", timeout=PATIENCE).close()  # noqa: S310
                return
            time.sleep(0.1)
        raise AssertionError(f"MLflow does not answer:\n{(self.folder / 'server.log').read_text()[-3000:]}")

    def kill(self) -> None:
        if self._process:
            self._process.kill()
            self._process.wait()
            self._process = None
