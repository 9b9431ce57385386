"""Stacks on request, and ranks that do nothing: for programs that report no progress."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.polling import until
from tests.unit.agent.agent_process import running_agent, running_shell
from tests.unit.agent.fake_operator import FakeOperator, Poll, credentials
from tests.unit.agent.warm_start_run import OVER, READY, WarmStartRun
from tests.unit.agent.worker_environment import AGENT_SOURCE, WORKER_VARIABLES

STUCK = """
import threading
def all_reduce(): threading.Event().wait()
record(f"started{R}", "yes")
all_reduce()
"""
SPINS = """
record(f"started{R}", "yes")
def compute():
    while True: pass
compute()
"""


def poll_with(operator: FakeOperator, field: str, *, value: object) -> Poll:
    def matching() -> list[Poll]:
        return [poll for poll in [*operator.polls] if poll.get(field) == value]

    until(lambda: bool(matching()), 60, f"a poll with {field} {value}")
    return matching()[-1]


@pytest.mark.parametrize("run", [running_agent, running_shell])
def test_requested_stacks_are_in_the_log(folder: Path, program: Path, operator: FakeOperator, run: type) -> None:
    with run(program, folder, STUCK, **credentials(folder, operator.port)) as agent:
        agent.file("started2")
        agent.file("started3")
        operator.orders = {"attempt": 1, "run": True, "environment": {}, "stacks": "monday"}
        assert poll_with(operator, "stacks", value="monday")["state"] == "running"
        assert agent.process.poll() is None, "the ranks go on"
        operator.orders = {"attempt": 1, "run": True, "environment": {}, "stacks": "tuesday"}
        poll_with(operator, "stacks", value="tuesday")
        operator.fixed_answer = 410, {"reason": "Over", "message": ""}
        agent.process.terminate()
        _, log = agent.wait()
    assert log.count("stacks were requested; stacks follow ranks=2") == 2
    assert log.count("in all_reduce") == 4
    assert "rank 2: stacks of all threads" in log


def test_program_without_a_rank_writes_its_stacks(folder: Path, program: Path, operator: FakeOperator) -> None:
    script = "import threading\ndef all_reduce(): threading.Event().wait()\nopen('started', 'w')\nall_reduce()"
    command = [sys.executable, str(program), "--once", "--", sys.executable, "-c", script]
    variables = {**os.environ, **WORKER_VARIABLES, **credentials(folder, operator.port)}
    with subprocess.Popen(command, cwd=folder, env=variables, stderr=subprocess.PIPE, text=True) as process:
        until((folder / "started").exists, 60, "the program to run")
        operator.orders = {"attempt": 1, "run": True, "environment": {}, "stacks": "now"}
        poll_with(operator, "stacks", value="now")
        process.terminate()
        _, log = process.communicate(timeout=60)
    assert "stacks were requested; stacks follow ranks=0 programs=1" in log
    assert log.count("in all_reduce") == 1


def test_rank_without_python_is_described(folder: Path, program: Path, operator: FakeOperator) -> None:
    script = folder / "wait.sh"
    script.write_text("echo yes > started; sleep 600; exit 0")
    command = [sys.executable, str(program), "--", "sh", str(script)]
    variables = {**credentials(folder, operator.port), "TRAINYARD_REPLICAS": "1", "TRAINYARD_ATTEMPT": "1"}
    variables |= {"TRAINYARD_REPLICA_INDEX": "0", "TRAINYARD_PROCESSES_PER_REPLICA": "1", "TRAINYARD_JOB_UID": "u"}
    with subprocess.Popen(command, cwd=folder, env=variables, stderr=subprocess.PIPE, text=True) as process:
        until((folder / "started").exists, 60, "the rank to run")
        operator.orders = {"attempt": 1, "run": True, "environment": {}, "stacks": "now"}
        poll_with(operator, "stacks", value="now")
        process.terminate()
        _, log = process.communicate(timeout=60)
    assert "rank 0: no Python stack; process" in log
    assert "is in state S" in log


def test_ranks_that_do_nothing_are_reported(folder: Path, operator: FakeOperator) -> None:
    # Other programs of this machine use its network.
    quiet = "idle_watch.NETWORK = pathlib.Path('/dev/null')"
    run = f"import pathlib, sys; from trainyard_agent import idle_watch, main; {quiet}; sys.exit(main.main())"
    (folder / "script.py").write_text("import threading\ndef all_reduce(): threading.Event().wait()\nall_reduce()")
    # Longer than a busy machine takes to start the second rank after the first.
    own = {"TRAINYARD_HANG_TIMEOUT_SECONDS": "6", "PYTHONPATH": str(AGENT_SOURCE)}
    with subprocess.Popen(
        [sys.executable, "-c", run, "--", sys.executable, "script.py"],
        cwd=folder,
        env={**os.environ, **WORKER_VARIABLES, **credentials(folder, operator.port), **own},
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert poll_with(operator, "idle", value=True)["attempt"] == 1
        process.terminate()
        _, log = process.communicate(timeout=60)
    assert "no rank does anything; stacks follow ranks=2" in log
    assert log.count("in all_reduce") == 2


def test_ranks_that_work_are_not_reported(folder: Path, program: Path, operator: FakeOperator) -> None:
    variables = {**credentials(folder, operator.port), "TRAINYARD_HANG_TIMEOUT_SECONDS": "1"}
    with running_agent(program, folder, SPINS, **variables) as agent:
        agent.file("started2")
        operator.orders = {"attempt": 1, "run": True, "environment": {}, "stacks": "later"}
        poll_with(operator, "stacks", value="later")
        with pytest.raises(subprocess.TimeoutExpired):
            agent.process.wait(4)
    assert [poll for poll in operator.polls if poll.get("idle")] == []


def test_forked_rank_writes_its_stacks(folder: Path, program: Path, operator: FakeOperator) -> None:
    (folder / "script.py").write_text(
        "import json, threading\ndef all_reduce(): threading.Event().wait()\n"
        "open('started', 'w').write('yes')\nall_reduce()"
    )
    run = WarmStartRun(program, folder, operator, sys.executable, "script.py")
    try:
        assert READY in run.wait_until_ready()
        operator.order(2, run=True)
        run.agent.file("started")
        operator.orders = {**operator.orders, "stacks": "now"}
        poll_with(operator, "stacks", value="now")
        operator.fixed_answer = OVER
        run.agent.process.terminate()
        _, log = run.agent.wait()
    finally:
        run.agent.kill()
    assert "stacks were requested; stacks follow ranks=1" in log
    assert "in all_reduce" in log


def test_the_image_keeps_its_own_sitecustomize(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import builtins; builtins.customized = __file__")
    made = subprocess.run(
        [sys.executable, "-c", "print(customized)"],
        env={"PYTHONPATH": f"{AGENT_SOURCE}:{tmp_path}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (made.stdout.strip(), made.stderr) == (str(tmp_path / "sitecustomize.py"), "")


def test_failing_sitecustomize_fails_as_without_agent(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("raise ImportError('mine')")
    made = subprocess.run(
        [sys.executable, "-c", "print(1)"],
        env={"PYTHONPATH": f"{AGENT_SOURCE}:{tmp_path}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.stdout == "1\n"
    assert "mine" in made.stderr


OUTER = """#!{python}
import os, subprocess, sys
def waits_for_rank(): subprocess.run([sys.executable, "train.py"], env={{**os.environ, {own}}})
waits_for_rank()
"""


@pytest.mark.parametrize(
    ("launcher", "own"),
    [
        ("torchrun", "'RANK': '0', 'TORCHELASTIC_RUN_ID': 'x'"),
        ("conda", ""),
        ("accelerate", "'LOCAL_RANK': '0', 'RANK': '0'"),
    ],
)
def test_launcher_does_not_answer_for_its_rank(
    folder: Path, program: Path, operator: FakeOperator, launcher: str, own: str
) -> None:
    """The operator gives the only process of a worker its RANK, so that a launcher has one, too."""
    (folder / launcher).write_text(OUTER.format(python=sys.executable, own=own))
    (folder / launcher).chmod(0o755)
    (folder / "train.py").write_text(
        "import threading\nopen('started', 'w').write('yes')\ndef all_reduce(): threading.Event().wait()\nall_reduce()"
    )
    variables = {**os.environ, **WORKER_VARIABLES, **credentials(folder, operator.port), "TRAINYARD_REPLICAS": "1"}
    variables |= {
        "TRAINYARD_REPLICA_INDEX": "0",
        "TRAINYARD_PROCESSES_PER_REPLICA": "1",
        "RANK": "0",
        "WORLD_SIZE": "1",
    }
    command = [sys.executable, str(program), "--once", "--", f"./{launcher}"]
    with subprocess.Popen(command, cwd=folder, env=variables, stderr=subprocess.PIPE, text=True) as process:
        until((folder / "started").exists, 60, "the rank to run")
        operator.orders = {"attempt": 1, "run": True, "environment": {}, "stacks": "now"}
        poll_with(operator, "stacks", value="now")
        operator.fixed_answer = OVER
        process.terminate()
        _, log = process.communicate(timeout=60)
    assert log.count("in all_reduce") == 1
    assert "waits_for_rank" not in log
