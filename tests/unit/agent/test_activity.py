"""Which ranks do something when they were asked to exit, and which only wait."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from trainyard_agent.activity import Activity
from trainyard_agent.processes import descendants

WAITS = "import threading; threading.Event().wait()"
FORKS = "import subprocess, sys; subprocess.run([sys.executable, '-c', {!r}])"
BUSY = "while True: pass"
WRITES = """
import time, threading
def write():
    while True:
        open("checkpoint", "ab").write(bytes(100_000)); time.sleep(0.2)
threading.Thread(target=write, daemon=True).start()
threading.Event().wait()
"""


def idle_after(folder: Path, script: str, seconds: float) -> float:
    """Return for how long the script is idle after so long."""
    with subprocess.Popen([sys.executable, "-c", script], cwd=folder) as rank:
        try:
            time.sleep(1)  # It starts.
            activity, end, idle = Activity([rank.pid]), time.monotonic() + seconds, 0.0
            while time.monotonic() < end:
                idle = activity.idle_seconds()
                time.sleep(0.1)
        finally:
            for pid in (*descendants(rank.pid), rank.pid):
                os.kill(pid, signal.SIGKILL)
    return idle


@pytest.mark.parametrize(
    "script",
    [BUSY, WRITES, "import time; time.sleep(60)", FORKS.format(BUSY + " # child")],
    ids=["busy", "writes", "sleeps", "child"],
)
def test_rank_that_does_something_is_active(tmp_path: Path, script: str) -> None:
    assert idle_after(tmp_path, script, 3) < 1.5


@pytest.mark.parametrize(
    "script",
    [
        WAITS,
        "import socket; s = socket.create_server(('', 0)); s.accept()",
        "import os; r, _ = os.pipe(); os.read(r, 1)",
        FORKS.format(WAITS),
    ],
    ids=["lock", "socket", "pipe", "child"],
)
def test_rank_that_waits_is_idle(tmp_path: Path, script: str) -> None:
    assert idle_after(tmp_path, script, 3) > 1.5


def test_rank_that_is_gone_is_idle() -> None:
    done = subprocess.Popen(["true"])
    activity = Activity([done.pid])
    done.wait()
    time.sleep(0.6)
    assert activity.idle_seconds() > 0.5
