"""The operator as a process: started, killed without warning, and restarted as a kubelet would."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from tests.support.control_plane import start_mortal

ROOT: Final = Path(__file__).parents[2]
LOOK_SECONDS: Final = 0.02
SETTINGS: Final = {
    "TRAINYARD_HTTP_HOST": "127.0.0.1",
    "TRAINYARD_HTTP_PORT": "0",
    "TRAINYARD_HEALTH_PORT": "0",
    # Lists find what a watch did not tell; in a real cluster every five minutes.
    "TRAINYARD_RELIST_SECONDS": "5",
    "TRAINYARD_LEADER_ELECTION": "false",
    "TRAINYARD_LEASE_NAMESPACE": "trainyard-system",
}


@dataclass(slots=True)
class OperatorProcess:
    """One operator, replica `name`. It is started again whenever it has exited, after `away` seconds where a test has
    killed it.
    """

    name: str
    kubeconfig: Path
    log: Path
    settings: Mapping[str, str] = field(default_factory=dict)
    deaths: list[int] = field(default_factory=list)
    """Exit codes of exits that no test had requested."""
    kills: int = field(default=0, init=False)
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)
    _away: float | None = field(default=None, init=False)
    _task: asyncio.Task[None] | None = field(default=None, init=False)

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._supervise(), name=f"operator {self.name}")
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        if self._process is not None:
            self._process.kill()
            self._process.wait(timeout=10)

    def kill(self, *, away: float = 0.0, how: signal.Signals = signal.SIGKILL) -> None:
        """End it at once; it comes back after so many seconds."""
        if self._process is not None and self._process.poll() is None:
            self._away = away
            self.kills += 1
            self._process.send_signal(how)

    def tracebacks(self) -> list[str]:
        """The log lines that tell of a bug."""
        if not self.log.exists():
            return []
        return [line for line in self.log.read_text(errors="replace").splitlines() if "Traceback" in line]

    async def _supervise(self) -> None:
        while True:
            self._process = self._start()
            while (code := self._process.poll()) is None:  # noqa: ASYNC110 - a process is no event
                await asyncio.sleep(LOOK_SECONDS)
            if self._away is None:
                self.deaths.append(code)
            pause, self._away = self._away, None
            await asyncio.sleep(1.0 if pause is None else pause)

    def _start(self) -> subprocess.Popen[bytes]:
        environment = {key: value for key, value in os.environ.items() if not key.startswith("TRAINYARD_")}
        environment |= {"KUBECONFIG": str(self.kubeconfig), "PYTHONPATH": str(ROOT / "operator")}
        environment |= {**SETTINGS, "TRAINYARD_INSTANCE": self.name, **self.settings}
        with self.log.open("ab") as log:
            return start_mortal([sys.executable, "-m", "trainyard.controller"], stderr=log, stdout=log, env=environment)
