"""What a system and the control plane have used and asked for so far; the difference of two readings is a run's share."""

import ssl
import time
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from dev.benchmarks.scale import counters, usage
from dev.benchmarks.scale.api import BenchmarkError
from dev.benchmarks.scale.systems.base import HOST, Command, Ground
from dev.localcluster import processes
from dev.localcluster.addresses import CONTROLLER_MANAGER_PORT
from dev.localcluster.control_plane import DAEMONS
from dev.localcluster.paths import Paths

CONTROLLER_MANAGER: Final = f"https://{HOST}:{CONTROLLER_MANAGER_PORT}/metrics"
SCRAPE_SECONDS: Final = 10.0
CALM_SECONDS: Final = 30.0
CALM_SHARE: Final = 0.05
"""An operator that takes less of a core than this has done its work."""
QUIET_SHARE: Final = 0.4
"""The same for the whole control plane, whose idle processes are many."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Of one moment."""

    usage: usage.Usage
    calls: Mapping[str, int]
    controller_manager_s: float
    controller_manager_calls: Mapping[str, int]
    control_plane_s: float
    writes: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Meter:
    """Reads. `pids` are the system's processes."""

    ground: Ground
    pids: Sequence[int]
    command: Command | None

    def read(self) -> Reading:
        """Everything there is to read."""
        return Reading(
            usage.of(self.pids),
            counters.calls(scrape(self.command.metrics, self.command.headers)) if self.command else {},
            usage.seconds(_daemons(self.ground.paths, "kube-controller-manager")),
            counters.calls(scrape(CONTROLLER_MANAGER)),
            usage.seconds(_daemons(self.ground.paths, *DAEMONS, "kwok")),
            counters.writes(self.ground.api.text("GET", "/metrics")[1]),
        )

    def calm(self) -> None:
        """Wait until the system has done what it has to do: events and the like come after the status."""
        _becomes_idle(self.pids, CALM_SHARE, CALM_SECONDS)


def await_quiet(ground: Ground, seconds: float) -> bool:
    """Wait until the control plane is idle, and return whether it is."""
    return _becomes_idle(_daemons(ground.paths, *DAEMONS, "kwok"), QUIET_SHARE, seconds)


def scrape(url: str, headers: Mapping[str, str] | None = None) -> str:
    """The text of a metrics page.

    Raises:
        BenchmarkError: there is none.
    """
    trusting = ssl._create_unverified_context() if url.startswith("https") else None  # noqa: S323, SLF001 - loopback
    try:
        request = urllib.request.Request(url, headers=dict(headers or {}))  # noqa: S310 - a constant with a port
        with urllib.request.urlopen(request, timeout=SCRAPE_SECONDS, context=trusting) as answer:  # noqa: S310 - a constant with a port
            return str(answer.read().decode())
    except OSError as error:
        raise BenchmarkError(f"{url}: {error}") from error


def _daemons(paths: Paths, *names: str) -> list[int]:
    return [pid for name in names if (pid := processes.alive(paths, name)) is not None]


def _becomes_idle(pids: Sequence[int], share: float, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    before = usage.seconds(pids)
    while time.monotonic() < deadline:
        time.sleep(1.0)
        now = usage.seconds(pids)
        if now - before < share:
            return True
        before = now
    return False
