"""Workers that hang together tell where their ranks stand before any of them ends."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dev.benchmarks.agents.credentials import certificate
from tests.support.polling import until
from tests.unit.agent.operator_process import Operator, credentials, operating
from tests.unit.agent.place import AGENT, PLACE
from tests.unit.agent.running import shown
from trainyard_agent import processes
from trainyard_agent.report import STACKS

HANGS = """
import os, time
from trainyard_agent import progress

def load(): time.sleep(600)
def all_reduce(): time.sleep(600)
for step in range(5):
    progress(step)
    time.sleep(0.3)
load() if os.environ["RANK"] == "1" else all_reduce()
"""


@pytest.fixture
def operator(tmp_path: Path) -> Iterator[Operator]:
    certificate(tmp_path)
    (tmp_path / "token").write_text("a.b.c")
    with operating(tmp_path) as made:
        made.report_answer = 200, {"next": 60}
        # It takes reports only: a worker exits after its failure.
        made.says = 404, {}
        yield made


def start(folder: Path, index: int, port: int, together: int) -> subprocess.Popen[str]:
    """Worker `index` of two, of one rank each, which waits so many seconds for the other."""
    (folder / "script.py").write_text(HANGS)
    (folder / f"log{index}").touch()
    own = {
        "TRAINYARD_REPLICA_INDEX": str(index),
        "TRAINYARD_PROCESSES_PER_REPLICA": "1",
        "TRAINYARD_HANG_TIMEOUT_SECONDS": "2",
    }
    own |= {"TRAINYARD_TERMINATION_LOG": str(folder / f"log{index}"), **credentials(folder, port)}
    # Through a shell, which does not catch the signal and would end by it.
    command = ["sh", "-c", f"{sys.executable} script.py; exit $?"]
    agent = f"import sys; from trainyard_agent import hang_diagnosis, main; hang_diagnosis.TOGETHER_SECONDS = {together}; sys.exit(main.main())"
    return subprocess.Popen(
        [sys.executable, "-c", agent, "--", *command],
        env={**os.environ, **PLACE, **own, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(AGENT)},
        cwd=folder,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_all_have_told_before_the_first_ends(tmp_path: Path, operator: Operator) -> None:
    workers = [start(tmp_path, index, operator.port, 8) for index in (0, 1)]
    try:
        until(lambda: any(worker.poll() is not None for worker in workers), 60, "the end of one")
        heard = [body["ranks"] for body in operator.reports if "ranks" in body]
        stacks = {rank: said["stack"] for ranks in heard for rank, said in ranks.items() if "stack" in said}
        assert sorted(stacks) == ["0", "1"]
        assert " in all_reduce" in stacks["0"][0]
        assert " in load" in stacks["1"][0]
        assert [worker.wait(60) for worker in workers] == [91, 91]
        assert shown((tmp_path / "log1").read_text()).startswith("rank 1 is hung at script.py:")
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()


def test_a_worker_that_is_asked_to_end_meanwhile_does_not_tarry(tmp_path: Path, operator: Operator) -> None:
    worker = start(tmp_path, 1, operator.port, 600)
    try:
        until(
            lambda: any("stack" in said for body in operator.reports for said in body.get("ranks", {}).values()),
            60,
            "stacks",
        )
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(60) == 91
    finally:
        worker.kill()
        worker.communicate()


def test_who_does_not_catch_the_signal_is_not_asked(tmp_path: Path) -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as deaf:
        processes.ask(STACKS, deaf.pid)
        # It still answers: a signal would have arrived before this line.
        assert deaf.communicate("alive")[0] == "alive"
        assert deaf.returncode == 0
    processes.ask(STACKS, 2**22 + 1)
