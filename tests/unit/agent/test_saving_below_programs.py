"""Processes that a program of the user has started save their work when the worker is asked to exit."""

import signal
import sys
from pathlib import Path

import pytest

from tests.unit.agent.agent_process import AgentProcess

SAVES = """import os, signal, sys, time
def save(*_):
    time.sleep(1)
    open("saved" + os.environ.get("NUMBER", ""), "w").write("x")
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
with open("ready" + os.environ.get("NUMBER", ""), "w") as file: file.write("x")
while True: time.sleep(0.05)
"""
SPAWNS = """import multiprocessing, os, runpy
def rank(number):
    os.environ["NUMBER"] = str(number)
    runpy.run_path("saves.py")
if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    ranks = [context.Process(target=rank, args=(number,)) for number in range(2)]
    for each in ranks: each.start()
    for each in ranks: each.join()
"""
STARTS = "import subprocess, sys; subprocess.check_call([sys.executable, 'saves.py'])"


@pytest.mark.parametrize("once", [(), ("--once",)], ids=["a rank", "a launcher"])
@pytest.mark.parametrize(
    ("command", "numbers"),
    [
        ((sys.executable, "spawns.py"), ("0", "1")),
        ((sys.executable, "-c", STARTS), ("",)),
        (("sh", "-c", f"echo saves.py | xargs {sys.executable}"), ("",)),
    ],
    ids=["spawned processes", "a started program", "a program of xargs"],
)
def test_processes_below_a_program_save(
    program: Path, tmp_path: Path, once: tuple[str, ...], command: tuple[str, ...], numbers: tuple[str, ...]
) -> None:
    """The program above them would die of the signal, and take them along."""
    (tmp_path / "saves.py").write_text(SAVES)
    (tmp_path / "spawns.py").write_text(SPAWNS)
    own = {"TRAINYARD_PROCESSES_PER_REPLICA": "1", "TRAINYARD_GRACE_PERIOD_SECONDS": "60"}
    run = AgentProcess(program, tmp_path, *once, "--", *command, **own)
    try:
        for number in numbers:
            run.file(f"ready{number}")
        run.process.send_signal(signal.SIGTERM)
        run.wait()
        assert all((tmp_path / f"saved{number}").exists() for number in numbers)
    finally:
        run.kill()
