"""Failures that a command hides, where the program has no rank, or records nothing about itself."""

import os
import sys
from pathlib import Path

import pytest

from tests.unit.agent.agent_process import AgentProcess
from tests.unit.agent.fake_torch import fake_torch
from trainyard.domain.state.termination import Kind

PYTHON = sys.executable
TWO_GPUS = {"TRAINYARD_PROCESSES_PER_REPLICA": "2", "RANK": "", "LOCAL_RANK": "", "WORLD_SIZE": ""}
KERNEL_REPORTS_EXITS = tuple(int(part) for part in os.uname().release.split(".")[:2]) >= (6, 15)
SEEN = """
import os, pathlib, sys, time
agent, end = pathlib.Path("/proc", os.environ["AGENT"], "fdinfo"), time.monotonic() + 60
def is_followed(): return any(f"Pid:\\t{os.getpid()}\\n" in read(file) for file in agent.iterdir())
def read(file):
    try: return file.read_text()
    except OSError: return ""
while not is_followed() and time.monotonic() < end: time.sleep(0.05)
"""
"""Waits until the agent has a pidfd of the program."""
LAUNCHES = """
import os, subprocess, sys
import torch
ranks = [subprocess.Popen([sys.executable, "rank.py"], env={**os.environ, "RANK": str(rank)}) for rank in range(2)]
sys.exit(max(abs(rank.wait()) for rank in ranks))
"""


def run_once(program: Path, folder: Path, script: str) -> AgentProcess:
    fake_torch(folder)
    return AgentProcess(program, folder, "--once", "--", "sh", "-c", script, **TWO_GPUS)


def test_failure_without_a_rank_is_reported(program: Path, tmp_path: Path) -> None:
    """A worker with several GPUs runs a script once, and gives it no rank."""
    (tmp_path / "train.py").write_text("raise ValueError('boom')")
    run = run_once(program, tmp_path, f"{PYTHON} train.py 2>&1 | cat")
    assert run.wait()[0] == 0
    assert run.data is not None
    assert (run.data.kind, run.data.rank, run.data.exception) == (Kind.HIDDEN, None, "ValueError: boom")


@pytest.mark.parametrize(
    ("script", "rank"),
    [
        (f"{PYTHON} -c 'import apex' || echo install; {PYTHON} train.py", "import torch"),
        (f"{PYTHON} -c 'import apex' || echo install; {PYTHON} launch.py", "import torch"),
        (f"{PYTHON} launch.py || echo stopped", "import os, signal, torch\nos.kill(os.getpid(), signal.SIGTERM)"),
    ],
    ids=["test before a training", "test before a launcher", "stopped ranks"],
)
def test_healthy_scripts_without_a_rank_report_nothing(program: Path, tmp_path: Path, script: str, rank: str) -> None:
    (tmp_path / "launch.py").write_text(LAUNCHES)
    for name in ("rank.py", "train.py"):
        (tmp_path / name).write_text(rank)
    run = run_once(program, tmp_path, script)
    assert (run.wait()[0], run.message) == (0, "")


@pytest.mark.skipif(
    not KERNEL_REPORTS_EXITS, reason="the kernel does not report the exits of other processes' children"
)
@pytest.mark.parametrize(
    "start",
    [f"PYTHONPATH=/code {PYTHON}", f"{PYTHON} -I", f"export PYTHONPATH=$PWD; RANK=1 {PYTHON}"],
    ids=["PYTHONPATH", "isolated", "exported PYTHONPATH"],
)
def test_failure_of_unobserved_program_is_reported(program: Path, tmp_path: Path, start: str) -> None:
    """Neither Python nor the program reports anything. The kernel reports the exit code."""
    (tmp_path / "train.py").write_text(f"{SEEN}\nsys.exit(7)")
    run = run_once(program, tmp_path, f"export AGENT=$PPID; {start} train.py | cat")
    assert run.wait()[0] == 0
    assert run.data is not None
    assert (run.data.kind, run.data.exit_code) == (Kind.HIDDEN, 7)
    assert run.data.rank == (1 if "RANK" in start else None)


@pytest.mark.parametrize(
    "train",
    [
        "sys.exit(0)",
        "import subprocess; subprocess.run([sys.executable, '-I', '-c', 'import sys; sys.exit(3)'])",
        "os.kill(os.getpid(), 15)",
    ],
    ids=["success", "helper", "stopped"],
)
def test_healthy_unobserved_programs_report_nothing(program: Path, tmp_path: Path, train: str) -> None:
    (tmp_path / "train.py").write_text(f"{SEEN if KERNEL_REPORTS_EXITS else 'import os, sys'}\n{train}")
    run = run_once(program, tmp_path, f"export AGENT=$PPID; {PYTHON} -I train.py | cat")
    assert (run.wait()[0], run.message) == (0, "")


def test_exception_explains_the_signal_after_it(program: Path, tmp_path: Path) -> None:
    """As where a launcher of MPI kills a rank that has raised it."""
    (tmp_path / "seen.py").write_text(SEEN)
    (tmp_path / "train.py").write_text("""
import atexit, os, runpy, signal, torch
@atexit.register
def leave():
    runpy.run_path("seen.py")
    os.kill(os.getpid(), signal.SIGKILL)
raise ValueError("boom")
""")
    run = run_once(program, tmp_path, f"AGENT=$PPID {PYTHON} train.py; exit 0")
    assert run.wait()[0] == 0
    assert run.data is not None
    assert (run.data.kind, run.data.exit_code, run.data.exception) == (Kind.HIDDEN, 1, "ValueError: boom")
