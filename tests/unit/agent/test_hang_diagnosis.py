"""All workers of a hung group report the stacks of their ranks before any of them exits."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dev.benchmarks.agents.credentials import certificate
from tests.support.polling import until
from tests.unit.agent.agent_process import displayed
from tests.unit.agent.fake_operator import FakeOperator, credentials, serve_operator
from tests.unit.agent.worker_environment import AGENT_SOURCE, WORKER_VARIABLES
from trainyard_agent import processes
from trainyard_agent.report_file import STACKS

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
def operator(tmp_path: Path) -> Iterator[FakeOperator]:
    certificate(tmp_path)
    (tmp_path / "token").write_text("a.b.c")
    with serve_operator(tmp_path) as made:
        made.report_answer = 200, {"next": 60}
        # It takes reports only: a worker exits after its failure.
        made.fixed_answer = 404, {}
        yield made


def start(folder: Path, index: int, port: int, together: int) -> subprocess.Popen[str]:
    """Worker `index` of two, of one rank each, which waits `together` seconds for the other."""
    (folder / "script.py").write_text(HANGS)
    (folder / f"log{index}").touch()
    own = {
        "TRAINYARD_REPLICA_INDEX": str(index),
        "TRAINYARD_PROCESSES_PER_REPLICA": "1",
        "TRAINYARD_HANG_TIMEOUT_SECONDS": "2",
    }
    own |= {"TRAINYARD_TERMINATION_LOG": str(folder / f"log{index}"), **credentials(folder, port)}
    # The shell does not catch the signal and would exit because of it.
    command = ["sh", "-c", f"{sys.executable} script.py; exit $?"]
    agent = f"import sys; from trainyard_agent import hang_diagnosis, main; hang_diagnosis.TOGETHER_SECONDS = {together}; sys.exit(main.main())"
    return subprocess.Popen(
        [sys.executable, "-c", agent, "--", *command],
        env={**os.environ, **WORKER_VARIABLES, **own, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(AGENT_SOURCE)},
        cwd=folder,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_all_workers_report_stacks_before_exit(tmp_path: Path, operator: FakeOperator) -> None:
    workers = [start(tmp_path, index, operator.port, 8) for index in (0, 1)]
    try:
        until(lambda: any(worker.poll() is not None for worker in workers), 60, "one worker to exit")
        received = [body["ranks"] for body in operator.reports if "ranks" in body]
        stacks = {rank: entry["stack"] for ranks in received for rank, entry in ranks.items() if "stack" in entry}
        assert sorted(stacks) == ["0", "1"]
        assert " in all_reduce" in stacks["0"][0]
        assert " in load" in stacks["1"][0]
        assert [worker.wait(60) for worker in workers] == [91, 91]
        assert displayed((tmp_path / "log1").read_text()).startswith("rank 1 is hung at script.py:")
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()


def test_sigterm_interrupts_hang_diagnosis(tmp_path: Path, operator: FakeOperator) -> None:
    worker = start(tmp_path, 1, operator.port, 600)
    try:
        until(
            lambda: any(
                "stack" in rank_report for body in operator.reports for rank_report in body.get("ranks", {}).values()
            ),
            60,
            "stacks",
        )
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(60) == 91
    finally:
        worker.kill()
        worker.communicate()


def test_process_without_handler_gets_no_signal(tmp_path: Path) -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as reader:
        processes.ask(STACKS, reader.pid)
        # It still answers: a signal would have arrived before this line.
        assert reader.communicate("alive")[0] == "alive"
        assert reader.returncode == 0
    processes.ask(STACKS, 2**22 + 1)
