"""In-place restart: after a failure, the agent starts its ranks again in the same container."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.polling import until
from tests.unit.agent.agent_process import AgentProcess, displayed, is_alive, running_agent
from tests.unit.agent.fake_operator import FakeOperator, credentials
from tests.unit.agent.rank_scripts import RANK_PRELUDE, WARM_START_OFF
from tests.unit.agent.worker_environment import AGENT_SOURCE
from trainyard.domain.state.termination import read


def test_ranks_restart_with_the_new_environment(program: Path, folder: Path, operator: FakeOperator) -> None:
    script = f"""{RANK_PRELUDE}
from trainyard_agent import progress
file = os.environ["TRAINYARD_PROGRESS_FILE"]
record(f"first{{R}}-{{A}}", os.path.exists(file))
names = ("RANK", "MASTER_ADDR", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "OWN")
record(f"env{{R}}-{{A}}", " ".join(os.environ.get(name, "-") for name in names))
if A == "1":
    progress(7)
    wait_for("go")
    if R == 3: sys.exit(5)
    time.sleep(600)
"""
    with running_agent(
        program, folder, script, **credentials(folder, operator.port), **WARM_START_OFF, OWN="kept"
    ) as run:
        assert run.file("env3-1") == "3 - uid-1 0 kept"
        operator.wait_for("running")
        (folder / "go").touch()
        reported = operator.wait_for("failed")
        assert reported["failure"]["code"] == 5
        data = read(reported["failure"]["message"]).data
        assert data is not None
        assert (data.kind, data.rank, data.exit_code, data.step) == ("failed", 3, 5, 7)
        assert 0 <= reported["failure"]["age"] < 60
        operator.order(2, run=False)
        operator.wait_for("waiting", 2)
        assert not is_alive(int(run.file("ran2-1")))
        assert not (folder / "ran2-2").exists()
        operator.order(2, run=True, MASTER_ADDR="other")
        assert run.wait()[0] == 0
        assert (run.file("env2-2"), run.file("env3-2")) == ("2 other uid-2 1 kept", "3 other uid-2 1 kept")
        assert (run.file("first3-1"), run.file("first3-2"), run.message) == ("False", "False", "")


def test_replaced_worker_exits_without_its_kubelet(program: Path, folder: Path, operator: FakeOperator) -> None:
    variables = {**credentials(folder, operator.port), **WARM_START_OFF, "TRAINYARD_GRACE_PERIOD_SECONDS": "1"}
    with running_agent(program, folder, f"{RANK_PRELUDE}\ntime.sleep(600)", **variables) as run:
        ranks = [int(run.file(f"ran{rank}-1")) for rank in (2, 3)]
        operator.wait_for("running")
        operator.fixed_answer = (410, {"reason": "Replaced", "message": "another pod has this place"})
        operator.order(1, run=True)
        assert run.wait()[0] == 143
        assert not any(map(is_alive, ranks))


def test_failure_is_reported_before_other_ranks_exit(program: Path, folder: Path, operator: FakeOperator) -> None:
    script = f"""{RANK_PRELUDE}
def last_words(*_):
    wait_for("reported")
    record("stopped", "yes")
    os._exit(0)
signal.signal(signal.SIGTERM, last_words)
record(f"ready{{R}}", "yes")
wait_for("ready2")
wait_for("go")
if R == 3: raise ValueError("boom")
time.sleep(600)
"""
    with running_agent(program, folder, script, **credentials(folder, operator.port), **WARM_START_OFF) as run:
        run.file("ready2")
        operator.wait_for("running")
        (folder / "go").touch()
        message = displayed(operator.wait_for("failed")["failure"]["message"])
        assert message.startswith("rank 3 exited with code 1: ValueError: boom\nTraceback")
        (folder / "reported").touch()
        assert run.file("stopped") == "yes"


def test_orphans_are_killed_before_worker_waits(program: Path, folder: Path, operator: FakeOperator) -> None:
    script = f"""{RANK_PRELUDE}
if R == 3:
    quiet = "import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(os.getpid(), flush=True); time.sleep(600)"
    left = subprocess.Popen(["setsid", sys.executable, "-c", quiet], stdout=subprocess.PIPE, text=True)
    record("left", left.stdout.readline())
    os.kill(os.getpid(), signal.SIGKILL)
"""
    with running_agent(program, folder, script, **credentials(folder, operator.port), **WARM_START_OFF) as run:
        assert operator.wait_for("failed")["failure"]["code"] == 137
        operator.order(2, run=False)
        operator.wait_for("waiting", 2)
        assert not is_alive(int(run.file("left")))


def test_running_ranks_stop_for_newer_attempt(program: Path, folder: Path, operator: FakeOperator) -> None:
    script = f"{RANK_PRELUDE}\nif A == '1': time.sleep(600)\nsys.exit(0 if A == '3' else 9)"
    with running_agent(program, folder, script, **credentials(folder, operator.port), **WARM_START_OFF) as run:
        first = int(run.file("ran2-1"))
        # Attempt 2 was given up while the worker waited.
        operator.order(2, run=False)
        operator.wait_for("waiting", 2)
        assert not is_alive(first)
        operator.order(3, run=True)
        assert run.wait()[0] == 0
        assert not (folder / "ran2-2").exists()
        assert "failed" not in {poll["state"] for poll in operator.polls}


def test_hang_is_reported_as_a_failure(program: Path, folder: Path, operator: FakeOperator) -> None:
    script = f"""{RANK_PRELUDE}
from trainyard_agent import progress
for step in range(5): progress(step); time.sleep(0.2)
if A == "1": time.sleep(600)
"""
    variables = {**credentials(folder, operator.port), **WARM_START_OFF, "TRAINYARD_HANG_TIMEOUT_SECONDS": "2"}
    with running_agent(program, folder, script, **variables) as run:
        reported = operator.wait_for("failed")["failure"]
        assert reported["code"] == 91
        assert " is hung at script.py:" in displayed(reported["message"])
        operator.order(2, run=True)
        assert run.wait()[0] == 0


def test_reports_belong_to_the_running_attempt(program: Path, folder: Path, operator: FakeOperator) -> None:
    script = f"""{RANK_PRELUDE}
from trainyard_agent import progress
progress(100 if A == "1" else 1)
wait_for(f"go{{A}}")
sys.exit(5 if A == "1" else 0)
"""
    with running_agent(program, folder, script, **credentials(folder, operator.port), **WARM_START_OFF) as run:
        operator.wait_for("running")
        run.file("ran3-1")
        operator.order(2, run=True)
        run.file("ran3-2")
        (folder / "go2").touch()
        assert run.wait()[0] == 0
        assert {
            rank["step"] for report in operator.reports if report["attempt"] == 2 for rank in report["ranks"].values()
        } == {1}


def test_launcher_is_restarted(program: Path, folder: Path, operator: FakeOperator) -> None:
    (folder / "script.py").write_text("import os, sys; sys.exit(int(os.environ['TRAINYARD_ATTEMPT']) < 2 and 4)")
    words = ("--once", "--", sys.executable, "script.py")
    run = AgentProcess(program, folder, *words, **credentials(folder, operator.port), **WARM_START_OFF)
    try:
        assert operator.wait_for("failed")["failure"] == {**operator.polls[-1]["failure"], "code": 4}
        operator.order(2, run=True)
        assert run.wait()[0] == 0
    finally:
        run.kill()


def test_failed_start_is_reported_as_failure(program: Path, folder: Path, operator: FakeOperator) -> None:
    run = AgentProcess(program, folder, "--", "./later", **credentials(folder, operator.port), **WARM_START_OFF)
    try:
        assert operator.wait_for("failed")["failure"]["code"] == 127
        (folder / "later").write_text("#!/bin/sh\nexit 0\n")
        (folder / "later").chmod(0o755)
        operator.order(2, run=True)
        assert run.wait()[0] == 0
    finally:
        run.kill()


def test_command_that_disappeared_is_a_retryable_failure(program: Path, folder: Path, operator: FakeOperator) -> None:
    """The container has lost a volume."""
    (folder / "lost").write_text("#!/bin/sh\nrm -f lost\nexit 5\n")
    (folder / "lost").chmod(0o755)
    run = AgentProcess(
        program,
        folder,
        "--",
        "./lost",
        **credentials(folder, operator.port),
        **WARM_START_OFF,
        TRAINYARD_PROCESSES_PER_REPLICA="1",
    )
    try:
        assert operator.wait_for("failed")["failure"]["code"] == 5
        operator.order(2, run=True)
        reported = operator.wait_for("failed", 2)["failure"]
        assert (reported["code"], displayed(reported["message"])) == (
            1,
            "cannot start ./lost: No such file or directory",
        )
    finally:
        run.kill()


def test_replacement_reports_when_imports_are_done(program: Path, folder: Path, operator: FakeOperator) -> None:
    site = folder / "lib" / "site-packages"
    site.mkdir(parents=True)
    # A faster import could be done before the first request.
    (site / "heavy.py").write_text("import time\ntime.sleep(1)\n")
    place = {"TRAINYARD_RENDEZVOUS": "wait", "TRAINYARD_ATTEMPT": "4", "PYTHONPATH": str(site)}
    (folder / "train.py").write_text("import heavy\n")
    command = ("--", sys.executable, "train.py")
    run = AgentProcess(program, folder, *command, **credentials(folder, operator.port), **place)
    try:
        operator.order(4, run=False)
        until(lambda: operator.polls and "prepared" not in operator.polls[-1], 60, "the worker to be prepared")
        assert operator.polls[0] == {"attempt": 4, "state": "waiting", "prepared": False, "stacks": ""}
        operator.order(4, run=True)
        code, errors = run.wait()
        assert (code, "prepared warm start imported=heavy " in errors) == (0, True), errors
    finally:
        run.kill()


def test_replacement_waits_for_the_start_order(program: Path, folder: Path, operator: FakeOperator) -> None:
    operator.order(4, run=False)
    variables = {
        **credentials(folder, operator.port),
        **WARM_START_OFF,
        "TRAINYARD_RENDEZVOUS": "wait",
        "TRAINYARD_ATTEMPT": "4",
    }
    with running_agent(program, folder, RANK_PRELUDE, **variables) as run:
        operator.wait_for("waiting", 4)
        assert not (folder / "ran2-4").exists()
        operator.order(4, run=True)
        assert run.wait()[0] == 0
        assert int(run.file("ran3-4")) > 0
        assert {poll["state"] for poll in operator.polls} <= {"waiting", "running", "ended"}


@pytest.mark.parametrize(
    ("variables", "error"),
    [
        ({"TRAINYARD_RENDEZVOUS": "wait"}, "TRAINYARD_COORDINATOR is not set, so no order can come"),
        ({"TRAINYARD_RENDEZVOUS": "soon"}, "TRAINYARD_RENDEZVOUS must be wait, or not be set, got 'soon'"),
    ],
)
def test_waiting_without_a_coordinator_is_invalid(
    program: Path, tmp_path: Path, variables: dict[str, str], error: str
) -> None:
    run = AgentProcess(program, tmp_path, "--", "true", **variables)
    assert run.wait()[0] == 2
    assert error in run.message


@pytest.mark.parametrize("state", ["failed", "waiting"])
def test_idle_worker_exits_on_sigterm(program: Path, folder: Path, operator: FakeOperator, state: str) -> None:
    with running_agent(
        program, folder, f"{RANK_PRELUDE}\nsys.exit(7)", **credentials(folder, operator.port), **WARM_START_OFF
    ) as run:
        operator.wait_for("failed")
        if state == "waiting":
            operator.order(2, run=False)
            operator.wait_for("waiting", 2)
        run.process.send_signal(signal.SIGTERM)
        assert run.wait()[0] == (7 if state == "failed" else 143)


def test_failure_after_sigterm_is_not_restarted(program: Path, folder: Path, operator: FakeOperator) -> None:
    script = f"{RANK_PRELUDE}\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(90))\nrecord(f'ready{{R}}', 'yes')\ntime.sleep(600)"
    with running_agent(program, folder, script, **credentials(folder, operator.port), **WARM_START_OFF) as run:
        run.file("ready2")
        run.file("ready3")
        operator.wait_for("running")
        run.process.send_signal(signal.SIGTERM)
        assert run.wait()[0] == 90
        assert {poll["state"] for poll in operator.polls} == {"running", "ended"}


def test_agent_start_does_not_import_ssl() -> None:
    """The import would cost each start about ten milliseconds."""
    script = "import sys, trainyard_agent.main; print('ssl' in sys.modules)"
    environment = {"PYTHONPATH": str(AGENT_SOURCE), "PYTHONDONTWRITEBYTECODE": "1"}
    assert subprocess.check_output([sys.executable, "-c", script], env=environment, text=True) == "False\n"


def test_stacks_are_logged_for_hang_elsewhere(program: Path, folder: Path, operator: FakeOperator) -> None:
    script = f"""{RANK_PRELUDE}
from trainyard_agent import progress
progress(1)
def all_reduce():
    record(f"there{{R}}", "yes")
    time.sleep(600)
all_reduce()
"""
    with running_agent(program, folder, script, **credentials(folder, operator.port), **WARM_START_OFF) as run:
        run.file("there2")
        run.file("there3")
        operator.orders = {"attempt": 2, "run": False, "hung": True}
        operator.wait_for("waiting", 2)
        run.process.terminate()
        errors = run.wait()[1]
    for rank in (2, 3):
        assert f"rank {rank} hangs, or waits for a rank that does" in errors
    assert errors.count("in all_reduce") == 2


def test_no_stacks_are_requested_without_a_hang(program: Path, folder: Path, operator: FakeOperator) -> None:
    script = f"{RANK_PRELUDE}\nfrom trainyard_agent import progress\nprogress(1)\ntime.sleep(600)"
    with running_agent(program, folder, script, **credentials(folder, operator.port), **WARM_START_OFF) as run:
        run.file("ran2-1")
        run.file("ran3-1")
        operator.order(2, run=False)
        operator.wait_for("waiting", 2)
        run.process.terminate()
        assert "hangs" not in run.wait()[1]
