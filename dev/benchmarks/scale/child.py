"""Processes of the benchmark: they write JSON lines, and obey lines on their input."""

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
    """A Python module run as a process. Leaving the `with` block ends it."""

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
        self._heard: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    @property
    def pid(self) -> int:
        """Its number."""
        return self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        end(self._process)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()

    def tell(self, line: str) -> None:
        """Write a line to it."""
        if self._process.stdin is None or self._process.poll() is not None:
            raise BenchmarkError(f"{self._module} has ended")
        self._process.stdin.write(f"{line}\n")

    def hear(self, deadline: float) -> dict[str, Any] | None:
        """Its next word; None if there is none by `deadline`, on the monotonic clock.

        Raises:
            BenchmarkError: it has ended.
        """
        try:
            line = self._heard.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            return None
        if not line:
            raise BenchmarkError(f"{self._module} has ended")
        return dict(json.loads(line))

    def expect(self, word: str, seconds: float) -> dict[str, Any]:
        """Its next word, which must hold this key. Others before it are dropped.

        Raises:
            BenchmarkError: it does not come.
        """
        deadline = time.monotonic() + seconds
        while (heard := self.hear(deadline)) is not None:
            if word in heard:
                return heard
        raise BenchmarkError(f"{self._module} did not say {word!r} within {seconds:.0f} s")

    def _listen(self) -> None:
        if self._process.stdout is not None:
            for line in self._process.stdout:
                self._heard.put(line)
        self._heard.put("")


def daemon(argv: Sequence[str], environment: Mapping[str, str], log: Path) -> subprocess.Popen[bytes]:
    """A process whose output goes into a file."""
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
    """Ask it to end, and make it."""
    process.terminate()
    try:
        process.wait(timeout=END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
