"""Processes below this one: whom a signal reaches, and whom it is not meant for."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.polling import until
from tests.unit.agent.place import AGENT
from trainyard_agent.processes import descendants, forward_signal, is_alive, kill_all


def test_processes_of_another_user_are_left_to_the_end_of_the_container(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: int) -> None:
        raise PermissionError

    with subprocess.Popen(["sleep", "600"]) as other:
        with monkeypatch.context() as patched:
            patched.setattr(os, "kill", refuse)
            assert forward_signal(signal.SIGTERM, other.pid) == [other.pid]
            kill_all(os.getpid(), 0.05, lambda: None, descendants(os.getpid()) - {other.pid})
        assert other.poll() is None
        other.kill()


def test_whoever_is_spared_keeps_what_it_has_started(tmp_path: Path) -> None:
    tree = "sh -c 'echo $$ > spared; sleep 600; true' & sh -c 'echo $$ > other; sleep 600; true' & wait"
    with subprocess.Popen(["sh", "-c", tree], cwd=tmp_path) as root:
        until(lambda: len(descendants(root.pid)) == 4, 60, "two shells, and what they wait for")
        spared, other = (int((tmp_path / name).read_text()) for name in ("spared", "other"))
        kept = descendants(spared)
        assert len(kept) == 1
        assert descendants(root.pid, {spared}) == {other, *descendants(other)}
        os.kill(root.pid, signal.SIGSTOP)
        # Who is stopped reaps nobody.
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
def test_who_only_reads_the_words_of_another_is_not_ended_before_it(tmp_path: Path, pipeline: str) -> None:
    """The shell ends at once; the writer would at its next word, if nobody read it any more."""
    (tmp_path / "writer.py").write_text(WRITER)
    with subprocess.Popen(
        ["sh", "-c", f"{sys.executable} writer.py {pipeline}"], cwd=tmp_path, stderr=subprocess.PIPE
    ) as shell:
        until(
            lambda: (tmp_path / "log").exists() and "ready" in (tmp_path / "log").read_text(), 60, "the writer is ready"
        )
        below = descendants(shell.pid)
        assert set(forward_signal(signal.SIGTERM, shell.pid)) == {shell.pid, *below}
        until(lambda: not any(map(is_alive, below)), 60, "the end of all")
        said = (tmp_path / "log").read_text() + (shell.stderr.read().decode() if shell.stderr else "")
    assert said.split() == ["ready", "saved"]


def test_who_reads_and_wants_to_be_told_is(tmp_path: Path) -> None:
    """A program that is fed by another one."""
    (tmp_path / "program.py").write_text(WRITER)
    with subprocess.Popen(["sh", "-c", f"sleep 600 | {sys.executable} program.py > log 2>&1"], cwd=tmp_path) as shell:
        until(lambda: (tmp_path / "log").exists() and "ready" in (tmp_path / "log").read_text(), 60, "it is ready")
        below = descendants(shell.pid)
        forward_signal(signal.SIGTERM, shell.pid)
        until(lambda: not any(map(is_alive, below)), 60, "the end of all")
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
    print("nobody is left")
"""


def test_a_chain_of_processes_that_each_start_the_next_is_cut() -> None:
    """At no moment are there more than two; the one that a look finds has ended before it is killed, as a rule."""
    environment = {**os.environ, "PYTHONPATH": str(AGENT)}
    for _ in range(5):
        done = subprocess.run(
            [sys.executable, "-c", CHAIN], env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.stdout == "nobody is left\n"
