"""Exit of a worker whose ranks never start: after an early SIGTERM, or without an order."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.agent.agent_process import AgentProcess
from tests.unit.agent.fake_operator import FakeOperator, credentials
from tests.unit.agent.worker_environment import AGENT_SOURCE, TRAINER_IMAGE, WORKER_VARIABLES


def run(folder: Path, script: str) -> subprocess.CompletedProcess[str]:
    """Run a script in a new process: the agent kills all descendants of its own process."""
    environment = {
        **os.environ,
        **WORKER_VARIABLES,
        "PYTHONPATH": str(AGENT_SOURCE),
        "TRAINYARD_TERMINATION_LOG": str(folder / "log"),
    }
    words = [sys.executable, "-c", script]
    return subprocess.run(words, env=environment, cwd=folder, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize(("signals", "code"), [([int(signal.SIGTERM)], 143), ([], 0)])
def test_early_sigterm_is_not_lost(tmp_path: Path, signals: list[int], code: int) -> None:
    call = f"from trainyard_agent.main import main; raise SystemExit(main(['--', 'touch', 'ran'], {signals}))"
    assert run(tmp_path, call).returncode == code
    assert (tmp_path / "ran").exists() is not bool(signals)


def test_sigterm_during_import_is_not_lost(tmp_path: Path) -> None:
    shutil.copy(AGENT_SOURCE / "__main__.py", tmp_path)
    (tmp_path / "trainyard_agent").mkdir()
    imported = "import os, signal\nos.kill(os.getpid(), signal.SIGTERM)\ndef main(signals): print(*signals); return 7\n"
    (tmp_path / "trainyard_agent/main.py").write_text(imported)
    done = subprocess.run([sys.executable, "-I", str(tmp_path)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (7, f"{signal.SIGTERM:d}\n")


def test_sigterm_during_python_search_exits(tmp_path: Path) -> None:
    """The first process of a container ignores signals that it does not handle."""
    finder = tmp_path / "python3"
    finder.write_text("#!/bin/sh\nkill -TERM $PPID\nexit 1\n")
    finder.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "TRAINYARD_TERMINATION_LOG": str(tmp_path / "log")}
    start = ["/bin/sh", str(TRAINER_IMAGE / "start-agent.sh"), "--", "true"]
    assert subprocess.run(start, env=environment, check=False, timeout=60).returncode == 143


WAITS = """
from trainyard_agent.attempt import Command
from trainyard_agent.group import Group
from trainyard_agent.orders import Final, OperatorView
from trainyard_agent.container_restart import ContainerRestart
from trainyard_agent.probe_state import ProbeState
from trainyard_agent.worker import Worker
import os
class Silent:
    is_active = True
    def view(self, since): return OperatorView(None, {final}, answered=True, silence=601.0)
    def report(self, *_, **__): pass
with Group() as group:
    environment = {{**os.environ, "TRAINYARD_ATTEMPT": "4"}}
    end = Worker(Command(["true"], starts_ranks=False), environment, group, Silent(), print, ContainerRestart({{}}, print), ProbeState({{}}, print)).run(wait=True)
print(end.code, end.message and end.message.partition("\\n")[2])
"""


@pytest.mark.parametrize(
    ("final", "end"),
    [
        ("None", "92 attempt 4 was not started: the operator did not answer for 601 seconds"),
        ("Final.OFF", "92 attempt 4 was not started: the operator cannot be asked"),
        ("Final.OVER", "143 None"),
        ("Final.REPLACED", "143 None"),
    ],
)
def test_worker_without_start_order_gives_the_reason(tmp_path: Path, final: str, end: str) -> None:
    """The operator answered once, and does not answer any more."""
    done = run(tmp_path, WAITS.format(final=final))
    assert done.stdout == f"{end}\n", done.stderr


def test_worker_unknown_to_operator_gives_the_reason(program: Path, folder: Path, operator: FakeOperator) -> None:
    operator.fixed_answer = (404, {})
    waits = {**credentials(folder, operator.port), "TRAINYARD_RENDEZVOUS": "wait"}
    run = AgentProcess(program, folder, "--", "true", **waits)
    assert run.wait()[0] == 92
    assert run.message == "attempt 1 was not started: the operator cannot be asked"
