import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from trainyard_torch.monitoring.metrics_store import MetricsStore, store_folder
from trainyard_torch.monitoring.rank_metrics import RankMetrics

RANK = """
import os, sys, time
from pathlib import Path
from trainyard_torch.monitoring.metrics_store import MetricsStore
from trainyard_torch.monitoring.rank_metrics import RankMetrics
folder, rank, act = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
board = MetricsStore(folder, rank)
board.put(RankMetrics(rank=rank, step=1, time=0.0, steps=1))
if act == "fork" and not os.fork():
    time.sleep(60)
print("there", flush=True)
step = 1
while sys.stdin.readline() if act != "hurry" else True:
    step += 1
    # Now long, now short: what is left of the one must not be taken for the other's.
    board.put(RankMetrics(rank=rank, step=step, time=0.0, steps=step, phases={"data": 1.0} if step % 2 else {}))
    if act != "hurry":
        print("put", flush=True)
board.close()
print("closed", flush=True)
"""
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Ranks of the pod, each a process that has left a reading when this comes back."""
    ranks: list[subprocess.Popen[str]] = []

    def started(rank: int, act: str = "") -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            [sys.executable, "-c", RANK, str(tmp_path / "pod"), str(rank), act],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            process_group=0,
        )
        ranks.append(process)
        assert process.stdout
        assert process.stdout.readline() == "there\n"
        return process

    yield started
    for process in ranks:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.fixture
def board(tmp_path: Path) -> Iterator[MetricsStore]:
    board = MetricsStore(tmp_path / "pod", 0)
    yield board
    board.close()


def seen(board: MetricsStore) -> dict[int, int]:
    return {reading.rank: reading.step for reading in board.others()}


def test_the_ranks_of_a_pod_see_each_other(board: MetricsStore, start: Start) -> None:
    assert seen(board) == {}
    board.put(RankMetrics(rank=0, step=9, time=0.0, steps=9))
    second, _ = start(2), start(10)
    assert seen(board) == {2: 1, 10: 1}, "its own it knows"
    print(file=second.stdin, flush=True)
    assert second.stdout
    second.stdout.readline()
    assert seen(board) == {2: 2, 10: 1}
    second.communicate()
    assert seen(board) == {10: 1}, "it has come to its end"


@pytest.mark.parametrize("act", ["", "fork"])
def test_leftovers_of_a_killed_rank_are_not_reported(
    board: MetricsStore, start: Start, tmp_path: Path, act: str
) -> None:
    rank = start(1, act)
    assert seen(board) == {1: 1}
    rank.kill()
    rank.wait()
    assert (tmp_path / "pod/1").exists()
    assert seen(board) == {}, "not even where a process that it has forked lives on"
    again = start(1)
    assert seen(board) == {1: 1}
    assert again.poll() is None


def test_no_reading_is_torn(board: MetricsStore, start: Start) -> None:
    start(1, "hurry")
    last, until = 0, time.monotonic() + 30
    while last < 1000:
        assert time.monotonic() < until
        step = seen(board)[1]
        assert step >= last
        last = step


def test_rank_mid_write_reports_the_previous_reading(board: MetricsStore, start: Start, tmp_path: Path) -> None:
    start(1)
    (tmp_path / "pod/1").write_bytes(b"half of i")
    assert seen(board) == {}, "there was none before"
    start(2)
    assert seen(board) == {2: 1}
    (tmp_path / "pod/2").write_bytes(b"half of i")
    assert seen(board) == {2: 1}


def test_program_is_seen_again_after_clearing_folder(start: Start, board: MetricsStore, tmp_path: Path) -> None:
    rank = start(1)
    (tmp_path / "pod/1").unlink()
    (tmp_path / "pod").rmdir()
    assert seen(board) == {}
    print(file=rank.stdin, flush=True)
    assert rank.stdout
    rank.stdout.readline()
    assert seen(board) == {1: 2}


def test_nothing_is_left_in_the_end(board: MetricsStore, start: Start, tmp_path: Path) -> None:
    board.put(RankMetrics(rank=0, step=1, time=0.0, steps=1))
    start(1).communicate()
    board.close()
    assert [*tmp_path.iterdir()] == []


def test_foreign_folder_is_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "pod").symlink_to("elsewhere")
    board = MetricsStore(tmp_path / "pod", 3)
    for _ in range(3):
        board.put(RankMetrics(rank=3, step=1, time=0.0, steps=1))
    assert [*(tmp_path / "elsewhere").iterdir()] == []
    (message,) = caplog.messages
    assert "rank 3 cannot publish metrics" in message
    assert "another user's, or no folder; training continues" in message


def test_another_users_folder_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "pod").mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    MetricsStore(tmp_path / "pod", 3).put(RankMetrics(rank=3, step=1, time=0.0, steps=1))
    assert [*(tmp_path / "pod").iterdir()] == []
    assert "another user's" in caplog.text


def test_groups_on_one_machine_use_separate_folders() -> None:
    one = {"TORCHELASTIC_RUN_ID": "uid-1", "MASTER_ADDR": "a", "RANK": "0"}
    assert store_folder(one) == store_folder({**one, "RANK": "1", "LOCAL_RANK": "1"})
    assert (
        len(
            {
                store_folder(one),
                store_folder({**one, "TORCHELASTIC_RUN_ID": "uid-2"}),
                store_folder({**one, "GROUP_RANK": "1"}),
            }
        )
        == 3
    )
