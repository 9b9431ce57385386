"""What the agent makes of the records of programs, below shells, pipelines and launchers."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.polling import until
from tests.unit.agent.agent_process import AgentProcess
from tests.unit.agent.fake_operator import FakeOperator, credentials
from tests.unit.agent.fake_torch import fake_torch
from tests.unit.agent.rank_scripts import WARM_START_OFF
from trainyard.domain.state.termination import Kind
from trainyard_agent import processes
from trainyard_agent.rank_record_file import RankRecord
from trainyard_agent.rank_records import FormedGroups, RankRecords

ONE_RANK = {
    "TRAINYARD_REPLICA_INDEX": "1",
    "TRAINYARD_PROCESSES_PER_REPLICA": "1",
    "RANK": "1",
    "LOCAL_RANK": "0",
    "WORLD_SIZE": "2",
    **WARM_START_OFF,
}
"""As the operator sets it for worker 1 of 2 with one process each."""
PYTHON = sys.executable
KERNEL_REPORTS_EXITS = tuple(int(part) for part in os.uname().release.split(".")[:2]) >= (6, 15)


def records(folder: Path) -> list[Path]:
    return [*(folder / "records").iterdir()]


def write(folder: Path, pid: int, **fields: Any) -> None:
    content = {"rank": 0, "isRank": True, "owner": pid, "program": "train.py", **fields}
    (folder / "records" / f"{pid}.new").write_text(json.dumps(content))
    (folder / "records" / f"{pid}.new").rename(folder / "records" / str(pid))


@contextmanager
def running_below_shell() -> Iterator[int]:
    """Yield the PID of a process whose parent is a shell that reaps it."""
    with subprocess.Popen(["sh", "-c", "sleep 60 & echo $!; wait; sleep 60"], stdout=subprocess.PIPE) as shell:
        assert shell.stdout is not None
        try:
            yield int(shell.stdout.readline())
        finally:
            left = [shell.pid, *processes.descendants(shell.pid)]
            for pid in left:
                os.kill(pid, signal.SIGKILL)


def failed_after(folder: Path, *exits: dict[str, Any]) -> RankRecord | None:
    with RankRecords(folder) as made:
        for number, fields in enumerate(exits):
            write(folder, 2**22 + number, at=float(number), **fields)
        made.look(now=True)
        return made.failed()


@pytest.mark.parametrize(
    ("exits", "code"),
    [
        ([], None),
        ([{"code": 0}], None),
        ([{"code": 3}], 3),
        ([{"code": 3}, {"code": 4}], 3),
        ([{"code": 3}, {"code": 0}], None),
        ([{"code": 0}, {"code": 3}], 3),
        ([{"code": 3}, {"code": 0, "rank": 1}], 3),
        ([{"code": 3}, {"code": 0, "program": "report.py"}], 3),
        ([{"code": 143}, {"code": 130}], None),
        ([{"code": 143}, {"code": 137, "rank": 1}], 137),
        ([{"code": 3, "isRank": False}], None),
        ([{"code": 3, "program": "-c"}, {"code": 0, "trains": True}], None),
        ([{"code": 3, "program": "-c"}, {"code": 4, "trains": True}], 3),
        ([{"code": 3, "trains": True}, {"code": 0, "program": "report.py"}], 3),
        ([{"code": 3, "rank": None}], 3),
        ([{"code": 3, "rank": None, "program": "-c"}, {"code": 0, "rank": 1, "trains": True}], None),
        ([{"code": 1, "rank": None, "trains": True}, {"code": 143, "startedBy": 2**22}], None),
        ([{"code": 1, "rank": None, "trains": True}, {"code": 0, "startedBy": 2**22}], 1),
        ([{"code": 0, "rank": None}, {"code": 3, "startedBy": 2**22}], 3),
        ([{"code": 300}], None),
        ([{"code": "3"}], None),
    ],
)
def test_failed_rank(tmp_path: Path, exits: list[dict[str, Any]], code: int | None) -> None:
    """Retried programs count by their last exit; processes that were asked to exit, and helpers, do not."""
    found = failed_after(tmp_path, *exits)
    assert (found.code if found else None) == code


def test_kernel_reports_a_killed_rank(tmp_path: Path) -> None:
    """Its shell has reaped it before the agent looks; without such a kernel the exit code stays unknown."""
    with running_below_shell() as pid, RankRecords(tmp_path) as made:
        write(tmp_path, pid)
        made.look(now=True)
        assert made.failed() is None
        os.kill(pid, signal.SIGKILL)
        until(lambda: processes.stat(pid) is None, 10, "the rank to be reaped")
        made.look(now=True)
        found = made.failed()
    assert (found.code if found else None) == (137 if KERNEL_REPORTS_EXITS else None)


@pytest.mark.skipif(
    not KERNEL_REPORTS_EXITS, reason="the kernel does not report the exits of other processes' children"
)
def test_kernel_counts_more_than_the_record(tmp_path: Path) -> None:
    """After `raise SystemExit(1)`, for example, the record has code 0."""
    with running_below_shell() as pid, RankRecords(tmp_path) as made:
        write(tmp_path, pid)
        made.look(now=True)
        os.kill(pid, signal.SIGKILL)
        until(lambda: processes.stat(pid) is None, 10, "the rank to be reaped")
        write(tmp_path, pid, code=0, at=5.0)
        made.look(now=True)
        found = made.failed()
    assert found is not None
    assert (found.code, found.at) == (137, 5.0)


def test_programs_that_have_ended_keep_no_descriptor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel before 6.15 does not tell how they exited. A script may run thousands."""
    monkeypatch.setattr(processes, "PIDFD_GET_INFO", 0)
    with RankRecords(tmp_path) as made:
        before = len([*Path("/proc/self/fd").iterdir()])
        for _ in range(5):
            with subprocess.Popen(["sleep", "0.1"]) as program:
                write(tmp_path, program.pid)
                made.look(now=True)
            made.look(now=True)
        assert len([*Path("/proc/self/fd").iterdir()]) == before


def formed(folder: Path, *groups: tuple[int, int]) -> FormedGroups | None:
    """`groups`: rank and size, of processes that run."""
    running = [subprocess.Popen(["sleep", "60"]) for _ in groups]
    try:
        with RankRecords(folder) as made:
            for process, (rank, size) in zip(running, groups, strict=True):
                write(folder, process.pid, group={"rank": rank, "size": size, "formed": True})
            made.finish()
            return made.formed
    finally:
        for process in running:
            process.kill()
            process.wait()


def test_groups_of_a_worker(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "c").mkdir()
    assert formed(tmp_path / "a", (0, 2), (1, 2)) == FormedGroups(2, 1)
    assert formed(tmp_path / "b", (0, 2), (0, 2), (0, 1)) == FormedGroups(2, 2)
    assert formed(tmp_path / "c") is None


def test_restarted_leader_is_no_second_one(tmp_path: Path) -> None:
    group = {"rank": 0, "size": 2, "formed": True}
    with RankRecords(tmp_path) as made, subprocess.Popen(["sleep", "60"]) as first:
        write(tmp_path, first.pid, group=group)
        made.look(now=True)
        first.kill()
        first.wait()
        write(tmp_path, os.getpid(), group=group)
        made.finish()
        assert made.formed == FormedGroups(2, 1)


@pytest.mark.parametrize(("owners", "expected"), [((10, 20), True), ((10, 10), False)])
def test_own_ranks_of_two_processes(tmp_path: Path, owners: tuple[int, int], *, expected: bool) -> None:
    with RankRecords(tmp_path) as made:
        for pid, owner in zip((11, 21), owners, strict=True):
            write(tmp_path, pid, owner=owner, isRank=False, group={"rank": 0, "size": 2, "formed": False})
        made.look(now=True)
        assert made.starts_own_ranks is expected


def test_groups_of_one_are_no_own_ranks(program: Path, tmp_path: Path) -> None:
    """Each rank starts an inference engine in a process of its own, and fails before its own group is formed."""
    fake_torch(tmp_path)
    (tmp_path / "script.py").write_text("""
import multiprocessing as mp, os, time
def engine():
    import torch.distributed as dist
    dist.init_process_group("gloo", rank=0, world_size=1)
    open("engine" + os.environ["RANK"], "w").close()
    time.sleep(60)
if __name__ == "__main__":
    mp.get_context("spawn").Process(target=engine, daemon=True).start()
    while not all(os.path.exists("engine" + rank) for rank in "23"): time.sleep(0.01)
    if os.environ["RANK"] == "2": time.sleep(60)
    raise ConnectionResetError("the weights are not there yet")
""")
    run = AgentProcess(program, tmp_path, "--", PYTHON, "script.py", PYTHONPATH=str(tmp_path), **WARM_START_OFF)
    assert run.wait()[0] == 1
    assert run.data is not None
    assert (run.data.rank, run.data.cause) == (3, "")


def test_groups_one_after_the_other_count(tmp_path: Path) -> None:
    """Of two commands that each start their own ranks; the processes have ended when the next ones start."""
    with RankRecords(tmp_path) as made:
        for owner in (2**22, 2**22 + 10):
            write(tmp_path, owner, rank=int(owner > 2**22))
            for rank in (0, 1):
                fields = {"rank": rank, "size": 2, "formed": True}
                write(tmp_path, owner + 1 + rank, owner=owner, isRank=False, group=fields)
            made.look(now=True)
        made.finish()
        assert made.formed == FormedGroups(2, 2)


def test_groups_of_helpers_come_first(tmp_path: Path) -> None:
    """A helper forms its group before the ranks do: nothing is reported until the groups have stayed the same."""
    now = 100.0
    with RankRecords(tmp_path, clock=lambda: now) as made:
        write(tmp_path, 1, group={"rank": 0, "size": 1, "formed": True})
        made.look()
        now += 9
        write(tmp_path, os.getpid(), group={"rank": 1, "size": 2, "formed": True})
        made.look()
        assert made.formed is None
        now += 10
        made.look()
        assert made.formed == FormedGroups(2, 0)


def test_stages_of_a_script_are_no_own_ranks(tmp_path: Path) -> None:
    """Each starts its ranks after the stage before has ended, or starts again after a failure."""
    with RankRecords(tmp_path) as made:
        for owner in (2**22, 2**22 + 10):
            write(tmp_path, owner, rank=1)
            for rank in (0, 1):
                fields = {"rank": rank, "size": 2, "formed": True}
                write(tmp_path, owner + 1 + rank, owner=owner, isRank=False, group=fields)
            made.look(now=True)
            write(tmp_path, owner, rank=1, code=0, at=float(owner))
        made.finish()
        assert (made.formed, made.starts_own_ranks) == (FormedGroups(2, 1), False)


def test_checkpoint_process_of_a_rank_leads_no_group(tmp_path: Path) -> None:
    """torch.distributed.checkpoint.async_save starts one beside each rank, which form a group of the same ranks and size."""
    group = {"rank": 0, "size": 2, "formed": True}
    with RankRecords(tmp_path) as made, subprocess.Popen(["sleep", "60"]) as helper:
        write(tmp_path, os.getpid(), group=group)
        write(tmp_path, helper.pid, owner=os.getpid(), isRank=False, group=group)
        made.finish()
        helper.kill()
        assert made.formed == FormedGroups(2, 1)


def test_helpers_of_ranks_are_no_own_ranks(tmp_path: Path) -> None:
    with RankRecords(tmp_path) as made:
        for pid, rank in ((10, 0), (20, 1)):
            write(tmp_path, pid, group={"rank": rank, "size": 2, "formed": True})
            write(tmp_path, pid + 1, owner=pid, isRank=False, group={"rank": 0, "size": 1, "formed": True})
        made.look(now=True)
        assert not made.starts_own_ranks


HIDING = [
    f"{PYTHON} train.py 2>&1 | cat",
    f"{PYTHON} train.py; echo done",
    f"{PYTHON} train.py || true",
    f"env LOCAL_RANK=0 RANK=1 TORCHELASTIC_RUN_ID=x {PYTHON} train.py; exit 0",
]


EVALUATES = """
import os, subprocess, sys
os.environ["WORLD_SIZE"] = "1"
subprocess.run([sys.executable, "-c", "import sys; sys.exit(4)"], env={**os.environ, "RANK": "0"})
"""


def shell_run(program: Path, folder: Path, script: str, train: str, **environment: str) -> AgentProcess:
    (folder / "train.py").write_text(train)
    return AgentProcess(program, folder, "--", "sh", "-c", script, **{**ONE_RANK, **environment})


@pytest.mark.parametrize("script", HIDING)
def test_hidden_failure_is_reported(program: Path, tmp_path: Path, script: str) -> None:
    run = shell_run(program, tmp_path, script, "def load(): raise ValueError('boom')\nload()")
    assert run.wait()[0] == 0
    assert run.data is not None
    found = run.data.kind, run.data.rank, run.data.exit_code, run.data.exception
    assert found == (Kind.HIDDEN, 1, 1, "ValueError: boom")
    assert run.data.location == "train.py:1 in load < train.py:2 in <module>"


@pytest.mark.parametrize("script", HIDING)
def test_hidden_failure_fails_in_strict_mode(program: Path, tmp_path: Path, script: str) -> None:
    run = shell_run(program, tmp_path, script, "import sys; sys.exit(7)", TRAINYARD_HIDDEN_FAILURES="Fail")
    assert run.wait()[0] == 7
    assert run.data is not None
    assert (run.data.kind, run.data.rank, run.data.exit_code) == (Kind.FAILED, 1, 7)


@pytest.mark.parametrize(
    ("script", "train"),
    [
        (f"{PYTHON} train.py | cat", "pass"),
        (f"grep nothing /dev/null; {PYTHON} train.py; grep nothing /dev/null; true", "pass"),
        (
            f"until {PYTHON} train.py; do :; done",
            "import os, sys\nif not os.path.exists('x'): open('x', 'w'); sys.exit(3)",
        ),
        (f"{PYTHON} train.py & sleep 1; kill $!; wait; exit 0", "import time; time.sleep(60)"),
        (f"{PYTHON} train.py; exit $?", EVALUATES),
        (f"{PYTHON} train.py; exit $?", EVALUATES.replace("env={", "env={**os.environ} or {")),
        (f"{PYTHON} -c 'import apex' || echo install; {PYTHON} train.py", "import torch"),
        (f"{PYTHON} -m pip show apex >/dev/null 2>&1 || echo install; {PYTHON} train.py", "import torch"),
        (
            f"{PYTHON} -c 'import time; time.sleep(60)' & sleep 1.5; {PYTHON} train.py; kill -9 $!; wait; exit 0",
            "import torch",
        ),
    ],
)
def test_healthy_scripts_report_nothing(program: Path, tmp_path: Path, script: str, train: str) -> None:
    fake_torch(tmp_path)
    run = shell_run(program, tmp_path, script, train)
    assert (run.wait()[0], run.message) == (0, "")


def test_own_ranks_on_one_port_are_the_cause(program: Path, tmp_path: Path) -> None:
    fake_torch(tmp_path)
    (tmp_path / "script.py").write_text("""
import multiprocessing as mp, os, sys, time
def train():
    import torch.distributed as dist
    second = os.environ["RANK"] == "3"
    while second and not os.path.exists("bound"): time.sleep(0.01)
    dist.init_process_group("refuse" if second else "gloo", rank=0, world_size=2)
    open("bound", "w")
    time.sleep(60)
if __name__ == "__main__":
    child = mp.get_context("spawn").Process(target=train)
    child.start()
    child.join()
    raise RuntimeError("Address already in use")
""")
    run = AgentProcess(program, tmp_path, "--", PYTHON, "script.py", PYTHONPATH=str(tmp_path), **WARM_START_OFF)
    assert run.wait()[0] == 1
    assert run.data is not None
    assert (run.data.rank, run.data.cause) == (3, "startsOwnRanks")


def test_groups_are_reported_when_the_command_ends(program: Path, folder: Path, operator: FakeOperator) -> None:
    fake_torch(folder)
    (folder / "train.py").write_text(
        "import torch.distributed as dist; dist.init_process_group('gloo', rank=0, world_size=1)"
    )
    variables = {**ONE_RANK, **credentials(folder, operator.port), "PYTHONPATH": str(folder)}
    run = AgentProcess(program, folder, "--", PYTHON, "train.py", **variables)
    assert run.wait()[0] == 0
    assert operator.reports[-1:] == [{"attempt": 1, "ranks": {}, "groups": {"size": 1, "leaders": 1}}]
