"""The operator as the process that it is, with what it says on its port and in its log."""

import json
import os
import signal
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

from tests.api.plane import CERTIFICATE, HOME, Plane
from tests.support.control_plane import free_port, start_mortal
from tests.support.polling import until
from tests.unit.helm.chart import ROOT

HOST = f"trainyard-coordinator.{HOME}.svc"


def coordinator(port: int) -> dict[str, str]:
    """The settings of an operator that serves agents, with its own certificate."""
    address = {"coordinator_host": "127.0.0.1", "coordinator_port": str(port)}
    return {**address, "coordinator_url": f"https://{HOST}:8443", "coordinator_secret": CERTIFICATE}


class Operator:
    """One replica."""

    def __init__(self, plane: Plane, name: str, **settings: str) -> None:
        self.name = name
        self.plane = plane
        self.metrics_port, self.health_port = free_port(), free_port()
        self.kubeconfig = plane.kubeconfig_of_a_pod(name)
        self.log = plane.folder / f"{name}.log"
        clean = {key: value for key, value in os.environ.items() if not key.startswith("TRAINYARD_")}
        own = {
            "TRAINYARD_HTTP_HOST": "127.0.0.1",
            "TRAINYARD_HTTP_PORT": str(self.metrics_port),
            "TRAINYARD_HEALTH_PORT": str(self.health_port),
            "TRAINYARD_INSTANCE": name,
        }
        environment = {**clean, "KUBECONFIG": str(self.kubeconfig), "PYTHONPATH": str(ROOT / "operator")}
        environment |= own | {f"TRAINYARD_{key.upper()}": value for key, value in settings.items()}
        with self.log.open("wb") as log:
            command = [sys.executable, "-m", "trainyard.controller"]
            self.process = start_mortal(command, stderr=log, stdout=log, env=environment)

    def get(self, path: str) -> tuple[int, str]:
        """The answer of its port for this path; 0 where there is none."""
        port = self.metrics_port if path == "metrics" else self.health_port
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError:
            return 0, ""

    @property
    def leads(self) -> bool:
        return "this process is the leader" in self.get("readyz")[1]

    def until_ready(self) -> None:
        until(lambda: self.get("readyz")[0] == 200 or self.process.poll() is not None, 60, f"{self.name} to be ready")
        assert self.process.poll() is None, self.log.read_text()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self) -> None:
        """Kill it, if it is still there."""
        self.process.kill()
        self.process.wait(timeout=10)

    def ends(self, within: float) -> int:
        """Wait for its exit code."""
        return self.process.wait(timeout=within)

    def messages(self) -> list[str]:
        """What it has logged."""
        return [json.loads(line)["message"] for line in self.log.read_text().splitlines() if line.startswith("{")]

    def bugs(self) -> list[str]:
        """Tracebacks."""
        return [line for line in self.log.read_text().splitlines() if "Traceback" in line]


@contextmanager
def operator(plane: Plane, name: str, **settings: str) -> Iterator[Operator]:
    """One that runs, and has heard everything, while inside."""
    made = Operator(plane, name, **settings)
    try:
        made.until_ready()
        yield made
    finally:
        made.end()
