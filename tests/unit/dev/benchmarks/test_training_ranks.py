"""Processes that are started, watched and ended."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dev.benchmarks.training.loop import Competitor, StoppedError
from dev.benchmarks.training.ranks import Group, started

ROOT = Path(__file__).parents[4]
PRINTING = """
from itertools import count
for step in count(1):
    print(f"step {step} loss 1.0", flush=True)
"""


def stopped(process: subprocess.Popen[str]) -> None:
    """Until the kernel has stopped it."""
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT}")
    return tmp_path


def test_paused_rank_prints_nothing_and_continues(path: Path) -> None:
    (path / "printing.py").write_text(PRINTING)
    (path / "errors").touch()
    with started(["printing"], Group(1), first_output=subprocess.PIPE) as processes:
        one = Competitor("one", processes, path / "errors")
        one.line()
        one.pause()
        stopped(processes[0])
        one.go()
        now, then = one.line(), one.line()
        assert then.at >= now.at
        assert then.cpu >= now.cpu > 0
        assert then.step == now.step + 1
    assert processes[0].returncode == -9


def test_exited_rank_is_reported_with_its_output(path: Path) -> None:
    (path / "failing.py").write_text("import sys; sys.exit('there is no such thing')")
    with (path / "errors").open("w") as sink:
        group = Group(1)
        with started(["failing"], group, first_output=subprocess.PIPE, errors=sink.fileno()) as processes:
            one = Competitor("one", processes, path / "errors")
            with pytest.raises(StoppedError, match=r"one exited, or printed nothing(.|\n)*there is no such thing"):
                one.line()


def test_first_failure_stops_the_other_ranks(path: Path) -> None:
    (path / "uneven.py").write_text(
        "import os, signal, sys\nsys.exit(3) if os.environ['RANK'] == '3' else signal.pause()"
    )
    command = [sys.executable, "-m", "dev.benchmarks.training.ranks", "--world", "4", "--first", "2", "--count", "2"]
    assert subprocess.run([*command, "uneven"], check=False, timeout=60).returncode == 3


def test_each_finds_what_torchrun_would_have_set() -> None:
    group = Group(4, first=2, count=2, address="10.0.0.1", port=1, interface="cable")
    found = group.environment(1)
    assert (found["RANK"], found["LOCAL_RANK"], found["LOCAL_WORLD_SIZE"], found["GROUP_RANK"]) == ("3", "1", "2", "1")
    assert (found["MASTER_ADDR"], found["GLOO_SOCKET_IFNAME"]) == ("10.0.0.1", "cable")
    assert "RANK" not in Group(1).environment(0), "nobody has started it"
