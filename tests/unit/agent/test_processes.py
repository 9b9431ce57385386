"""Descendants of a process: which of them a signal reaches."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.polling import until
from tests.unit.agent.worker_environment import AGENT_SOURCE
from trainyard_agent.processes import descendants, is_alive, kill_all, processes_by_pid
from trainyard_agent.signalling import forward_signal


def test_processes_of_another_user_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: int) -> None:
        raise PermissionError

    with subprocess.Popen(["sleep", "600"]) as other:
        with monkeypatch.context() as patched:
            patched.setattr(os, "kill", refuse)
            assert forward_signal(signal.SIGTERM, other.pid, processes_by_pid()) == [other.pid]
            kill_all(os.getpid(), 0.05, lambda: None, descendants(os.getpid()) - {other.pid})
        assert other.poll() is None
        other.kill()


def test_spared_process_keeps_its_children(tmp_path: Path) -> None:
    tree = "sh -c 'echo $$ > spared; sleep 600; true' & sh -c 'echo $$ > other; sleep 600; true' & wait"
    with subprocess.Popen(["sh", "-c", tree], cwd=tmp_path) as root:
        until(lambda: len(descendants(root.pid)) == 4, 60, "two shells, and what they wait for")
        spared, other = (int((tmp_path / name).read_text()) for name in ("spared", "other"))
        kept = descendants(spared)
        assert len(kept) == 1
        assert descendants(root.pid, {spared}) == {other, *descendants(other)}
        os.kill(root.pid, signal.SIGSTOP)
        # A stopped process reaps no child.
        kill_all(root.pid, 1, lambda: None, {spared})
        assert descendants(root.pid) == {spared, *kept}
        root.send_signal(signal.SIGCONT)
        kill_all(root.pid, 60, lambda: None)
        assert root.wait(60) == 0


WRITER = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (print("saved", file=sys.stderr, flush=True), sys.exit(90)))
print("ready", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("pipeline", ["| tee log", "2>&1 | tee log | cat > copy", "2>&1 | cat | tee log"])
def test_pipe_reader_outlives_its_writer(tmp_path: Path, pipeline: str) -> None:
    """The shell exits immediately; the writer would exit at its next output if no process read it."""
    (tmp_path / "writer.py").write_text(WRITER)
    with subprocess.Popen(
        ["sh", "-c", f"{sys.executable} writer.py {pipeline}"], cwd=tmp_path, stderr=subprocess.PIPE
    ) as shell:
        until(
            lambda: (tmp_path / "log").exists() and "ready" in (tmp_path / "log").read_text(), 60, "the writer is ready"
        )
        below = descendants(shell.pid)
        assert set(forward_signal(signal.SIGTERM, shell.pid, processes_by_pid())) == {shell.pid, *below}
        until(lambda: not any(map(is_alive, below)), 60, "all to exit")
        output = (tmp_path / "log").read_text() + (shell.stderr.read().decode() if shell.stderr else "")
    assert output.split() == ["ready", "saved"]


def test_reader_with_signal_handler_is_signalled(tmp_path: Path) -> None:
    """A program that reads the output of another process."""
    (tmp_path / "program.py").write_text(WRITER)
    with subprocess.Popen(["sh", "-c", f"sleep 600 | {sys.executable} program.py > log 2>&1"], cwd=tmp_path) as shell:
        until(lambda: (tmp_path / "log").exists() and "ready" in (tmp_path / "log").read_text(), 60, "it is ready")
        below = descendants(shell.pid)
        forward_signal(signal.SIGTERM, shell.pid, processes_by_pid())
        until(lambda: not any(map(is_alive, below)), 60, "all to exit")
    assert (tmp_path / "log").read_text().split() == ["ready", "saved"]


CHAIN = """
import os, sys, time
from trainyard_agent import processes
processes.adopt_orphans()
if os.fork() == 0:
    while True:
        if os.fork():
            os._exit(0)
        time.sleep(0.005)
time.sleep(0.1)
processes.kill_all(os.getpid(), 60, lambda: [*processes.reap()])
try:
    os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    print("no child is left")
"""


def test_chain_of_forking_processes_is_killed() -> None:
    """At most two exist at any time; the one that is found has usually exited before it is killed."""
    environment = {**os.environ, "PYTHONPATH": str(AGENT_SOURCE)}
    for _ in range(5):
        done = subprocess.run(
            [sys.executable, "-c", CHAIN], env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.stdout == "no child is left\n"
