"""How a worker ends that never gets to its ranks: asked to before it had begun, or forgotten by the operator."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.agent.conftest import AGENT
from tests.unit.agent.operator_process import Operator, credentials
from tests.unit.agent.place import PLACE
from tests.unit.agent.running import Agent

TRAINER = AGENT.parent


def run(folder: Path, script: str) -> subprocess.CompletedProcess[str]:
    """A process of its own: the agent ends all that is below the one in which it is."""
    environment = {**os.environ, **PLACE, "PYTHONPATH": str(AGENT), "TRAINYARD_TERMINATION_LOG": str(folder / "log")}
    words = [sys.executable, "-c", script]
    return subprocess.run(words, env=environment, cwd=folder, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize(("heard", "code"), [([int(signal.SIGTERM)], 143), ([], 0)])
def test_early_sigterm_is_not_lost(tmp_path: Path, heard: list[int], code: int) -> None:
    call = f"from trainyard_agent.main import main; raise SystemExit(main(['--', 'touch', 'ran'], {heard}))"
    assert run(tmp_path, call).returncode == code
    assert (tmp_path / "ran").exists() is not bool(heard)


def test_sigterm_during_import_is_not_lost(tmp_path: Path) -> None:
    shutil.copy(AGENT / "__main__.py", tmp_path)
    (tmp_path / "trainyard_agent").mkdir()
    imported = "import os, signal\nos.kill(os.getpid(), signal.SIGTERM)\ndef main(signals): print(*signals); return 7\n"
    (tmp_path / "trainyard_agent/main.py").write_text(imported)
    done = subprocess.run([sys.executable, "-I", str(tmp_path)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (7, f"{signal.SIGTERM:d}\n")


def test_sigterm_during_python_search_exits(tmp_path: Path) -> None:
    """As its first process, which would not hear it otherwise."""
    finder = tmp_path / "python3"
    finder.write_text("#!/bin/sh\nkill -TERM $PPID\nexit 1\n")
    finder.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "TRAINYARD_TERMINATION_LOG": str(tmp_path / "log")}
    start = ["/bin/sh", str(TRAINER / "start-agent.sh"), "--", "true"]
    assert subprocess.run(start, env=environment, check=False, timeout=60).returncode == 143


WAITS = """
from trainyard_agent.attempt import Command
from trainyard_agent.group import Group
from trainyard_agent.orders import Final, OperatorView
from trainyard_agent.container_restart import ContainerRestart
from trainyard_agent.worker import Worker
import os
class Silent:
    is_active = True
    def view(self, since): return OperatorView(None, {final}, answered=True, silence=601.0)
    def report(self, *_, **__): pass
with Group() as group:
    environment = {{**os.environ, "TRAINYARD_ATTEMPT": "4"}}
    end = Worker(Command(["true"], starts_ranks=False), environment, group, Silent(), print, ContainerRestart({{}}, print)).run(wait=True)
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
def test_worker_without_start_order_gives_the_reason(
    tmp_path: Path, final: str, end: str
) -> None:
    """By an operator that has answered once, and does not any more."""
    done = run(tmp_path, WAITS.format(final=final))
    assert done.stdout == f"{end}\n", done.stderr


def test_worker_unknown_to_operator_gives_the_reason(program: Path, folder: Path, operator: Operator) -> None:
    operator.says = (404, {})
    waits = {**credentials(folder, operator.port), "TRAINYARD_RENDEZVOUS": "wait"}
    run = Agent(program, folder, "--", "true", **waits)
    assert run.ends()[0] == 92
    assert run.message == "attempt 1 was not started: the operator cannot be asked"
