"""Processes below this one: whom a signal reaches, and whom it is not meant for."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.patience import until
from trainyard_agent.processes import descendants, kill_all, pass_on


def test_processes_of_another_user_are_left_to_the_end_of_the_container(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: int) -> None:
        raise PermissionError

    with subprocess.Popen(["sleep", "600"]) as other:
        with monkeypatch.context() as patched:
            patched.setattr(os, "kill", refuse)
            assert pass_on(signal.SIGTERM, other.pid) == [other.pid]
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
        kill_all(root.pid, 60, lambda: None, {spared})
        assert descendants(root.pid) == {spared, *kept}
        root.send_signal(signal.SIGCONT)
        kill_all(root.pid, 60, lambda: None)
        assert root.wait(60) == 0
