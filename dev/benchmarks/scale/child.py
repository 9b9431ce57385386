"""Processes of the benchmark. They read commands and write JSON, one per line."""

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Self

from dev.benchmarks.scale.api import BenchmarkError

ROOT: Final = Path(__file__).parents[3]
END_SECONDS: Final = 30.0


class Child:
    """A Python module that runs as a process until the `with` block exits."""

    def __init__(self, module: str, *arguments: str) -> None:
        self._module = module
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            bufsize=1,
        )
        self._received: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    @property
    def pid(self) -> int:
        """Return the process ID."""
        return self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        end(self._process)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()

    def send(self, line: str) -> None:
        """Send a line to its standard input."""
        if self._process.stdin is None or self._process.poll() is not None:
            raise BenchmarkError(f"{self._module} has exited")
        self._process.stdin.write(f"{line}\n")

    def receive(self, deadline: float) -> dict[str, Any] | None:
        """Return its next message; None if there is none before `deadline` (monotonic clock).

        Raises:
            BenchmarkError: it has exited.
        """
        try:
            line = self._received.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            return None
        if not line:
            raise BenchmarkError(f"{self._module} has exited")
        return dict(json.loads(line))

    def expect(self, word: str, seconds: float) -> dict[str, Any]:
        """Return its next message with this key, and drop the messages before it.

        Raises:
            BenchmarkError: there is no such message in time.
        """
        deadline = time.monotonic() + seconds
        while (message := self.receive(deadline)) is not None:
            if word in message:
                return message
        raise BenchmarkError(f"{self._module} did not send {word!r} within {seconds:.0f} s")

    def _listen(self) -> None:
        if self._process.stdout is not None:
            for line in self._process.stdout:
                self._received.put(line)
        self._received.put("")


def daemon(argv: Sequence[str], environment: Mapping[str, str], log: Path) -> subprocess.Popen[bytes]:
    """Start a process with its output in a file."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as file:
        return subprocess.Popen(
            argv,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            cwd=ROOT,
        )


def end(process: subprocess.Popen[Any]) -> None:
    """Terminate a process; kill it after END_SECONDS."""
    process.terminate()
    try:
        process.wait(timeout=END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
