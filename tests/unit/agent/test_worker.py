"""A failure does not end a worker that has an operator: its ranks are started again, in the same container."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.polling import until
from tests.unit.agent.operator_process import Operator, credentials
from tests.unit.agent.place import AGENT
from tests.unit.agent.running import Agent, agent, alive, shown
from tests.unit.agent.scripts import COLD, STAY
from trainyard.domain.state.termination import read


def test_the_ranks_start_again_with_the_new_environment_and_nothing_of_the_old(
    program: Path, folder: Path, operator: Operator
) -> None:
    script = f"""{STAY}
from trainyard_agent import progress
file = os.environ["TRAINYARD_PROGRESS_FILE"]
say(f"first{{R}}-{{A}}", os.path.exists(file))
names = ("RANK", "MASTER_ADDR", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "OWN")
say(f"env{{R}}-{{A}}", " ".join(os.environ.get(name, "-") for name in names))
if A == "1":
    progress(7)
    wait_for("go")
    if R == 3: sys.exit(5)
    time.sleep(600)
"""
    with agent(program, folder, script, **credentials(folder, operator.port), **COLD, OWN="kept") as run:
        assert run.file("env3-1") == "3 - uid-1 0 kept"
        operator.hears("running")
        (folder / "go").touch()
        told = operator.hears("failed")
        assert told["failure"]["code"] == 5
        data = read(told["failure"]["message"]).data
        assert data is not None
        assert (data.kind, data.rank, data.exit_code, data.step) == ("failed", 3, 5, 7)
        assert 0 <= told["failure"]["age"] < 60
        operator.order(2, run=False)
        operator.hears("waiting", 2)
        assert not alive(int(run.file("ran2-1")))
        assert not (folder / "ran2-2").exists()
        operator.order(2, run=True, MASTER_ADDR="other")
        assert run.ends()[0] == 0
        assert (run.file("env2-2"), run.file("env3-2")) == ("2 other uid-2 1 kept", "3 other uid-2 1 kept")
        assert (run.file("first3-1"), run.file("first3-2"), run.message) == ("False", "False", "")


def test_whose_kubelet_is_dead_ends_by_itself_once_another_has_its_place(
    program: Path, folder: Path, operator: Operator
) -> None:
    variables = {**credentials(folder, operator.port), **COLD, "TRAINYARD_GRACE_PERIOD_SECONDS": "1"}
    with agent(program, folder, f"{STAY}\ntime.sleep(600)", **variables) as run:
        ranks = [int(run.file(f"ran{rank}-1")) for rank in (2, 3)]
        operator.hears("running")
        operator.says = (410, {"reason": "Replaced", "message": "another pod has this place"})
        operator.order(1, run=True)
        assert run.ends()[0] == 143
        assert not any(map(alive, ranks))


def test_a_failure_is_told_before_the_other_ranks_have_ended(program: Path, folder: Path, operator: Operator) -> None:
    script = f"""{STAY}
def last_words(*_):
    wait_for("told")
    say("heard", "yes")
    os._exit(0)
signal.signal(signal.SIGTERM, last_words)
say(f"ready{{R}}", "yes")
wait_for("ready2")
wait_for("go")
if R == 3: raise ValueError("boom")
time.sleep(600)
"""
    with agent(program, folder, script, **credentials(folder, operator.port), **COLD) as run:
        run.file("ready2")
        operator.hears("running")
        (folder / "go").touch()
        message = shown(operator.hears("failed")["failure"]["message"])
        assert message.startswith("rank 3 exited with code 1: ValueError: boom\nTraceback")
        (folder / "told").touch()
        assert run.file("heard") == "yes"


def test_what_a_rank_leaves_behind_is_gone_before_the_worker_says_that_it_waits(
    program: Path, folder: Path, operator: Operator
) -> None:
    script = f"""{STAY}
if R == 3:
    quiet = "import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(os.getpid(), flush=True); time.sleep(600)"
    left = subprocess.Popen(["setsid", sys.executable, "-c", quiet], stdout=subprocess.PIPE, text=True)
    say("left", left.stdout.readline())
    os.kill(os.getpid(), signal.SIGKILL)
"""
    with agent(program, folder, script, **credentials(folder, operator.port), **COLD) as run:
        assert operator.hears("failed")["failure"]["code"] == 137
        operator.order(2, run=False)
        operator.hears("waiting", 2)
        assert not alive(int(run.file("left")))


def test_ranks_that_run_well_are_stopped_for_a_newer_attempt(program: Path, folder: Path, operator: Operator) -> None:
    script = f"{STAY}\nif A == '1': time.sleep(600)\nsys.exit(0 if A == '3' else 9)"
    with agent(program, folder, script, **credentials(folder, operator.port), **COLD) as run:
        first = int(run.file("ran2-1"))
        # The one before was given up while it waited.
        operator.order(2, run=False)
        operator.hears("waiting", 2)
        assert not alive(first)
        operator.order(3, run=True)
        assert run.ends()[0] == 0
        assert not (folder / "ran2-2").exists()
        assert "failed" not in {poll["state"] for poll in operator.polls}


def test_a_hang_is_a_failure_like_others(program: Path, folder: Path, operator: Operator) -> None:
    script = f"""{STAY}
from trainyard_agent import progress
for step in range(5): progress(step); time.sleep(0.2)
if A == "1": time.sleep(600)
"""
    variables = {**credentials(folder, operator.port), **COLD, "TRAINYARD_HANG_TIMEOUT_SECONDS": "2"}
    with agent(program, folder, script, **variables) as run:
        told = operator.hears("failed")["failure"]
        assert told["code"] == 91
        assert " is hung at script.py:" in shown(told["message"])
        operator.order(2, run=True)
        assert run.ends()[0] == 0


def test_reports_are_of_the_attempt_that_runs(program: Path, folder: Path, operator: Operator) -> None:
    script = f"""{STAY}
from trainyard_agent import progress
progress(100 if A == "1" else 1)
wait_for(f"go{{A}}")
sys.exit(5 if A == "1" else 0)
"""
    with agent(program, folder, script, **credentials(folder, operator.port), **COLD) as run:
        operator.hears("running")
        run.file("ran3-1")
        operator.order(2, run=True)
        run.file("ran3-2")
        (folder / "go2").touch()
        assert run.ends()[0] == 0
        assert {
            rank["step"] for report in operator.reports if report["attempt"] == 2 for rank in report["ranks"].values()
        } == {1}


def test_a_launcher_is_started_again(program: Path, folder: Path, operator: Operator) -> None:
    (folder / "script.py").write_text("import os, sys; sys.exit(int(os.environ['TRAINYARD_ATTEMPT']) < 2 and 4)")
    words = ("--once", "--", sys.executable, "script.py")
    run = Agent(program, folder, *words, **credentials(folder, operator.port), **COLD)
    try:
        assert operator.hears("failed")["failure"] == {**operator.polls[-1]["failure"], "code": 4}
        operator.order(2, run=True)
        assert run.ends()[0] == 0
    finally:
        run.kill()


def test_what_cannot_be_started_is_a_failure_too(program: Path, folder: Path, operator: Operator) -> None:
    run = Agent(program, folder, "--", "./later", **credentials(folder, operator.port), **COLD)
    try:
        assert operator.hears("failed")["failure"]["code"] == 127
        (folder / "later").write_text("#!/bin/sh\nexit 0\n")
        (folder / "later").chmod(0o755)
        operator.order(2, run=True)
        assert run.ends()[0] == 0
    finally:
        run.kill()


def test_what_has_run_here_and_is_gone_may_run_elsewhere(program: Path, folder: Path, operator: Operator) -> None:
    """A volume of which the container has lost hold."""
    (folder / "lost").write_text("#!/bin/sh\nrm -f lost\nexit 5\n")
    (folder / "lost").chmod(0o755)
    run = Agent(
        program,
        folder,
        "--",
        "./lost",
        **credentials(folder, operator.port),
        **COLD,
        TRAINYARD_PROCESSES_PER_REPLICA="1",
    )
    try:
        assert operator.hears("failed")["failure"]["code"] == 5
        operator.order(2, run=True)
        told = operator.hears("failed", 2)["failure"]
        assert (told["code"], shown(told["message"])) == (1, "cannot start ./lost: No such file or directory")
    finally:
        run.kill()


def test_a_replacement_tells_when_its_imports_are_done(program: Path, folder: Path, operator: Operator) -> None:
    site = folder / "lib" / "site-packages"
    site.mkdir(parents=True)
    # Sooner, it could be done when the first call goes out.
    (site / "heavy.py").write_text("import time\ntime.sleep(1)\n")
    place = {"TRAINYARD_RENDEZVOUS": "wait", "TRAINYARD_ATTEMPT": "4", "PYTHONPATH": str(site)}
    (folder / "train.py").write_text("import heavy\n")
    command = ("--", sys.executable, "train.py")
    run = Agent(program, folder, *command, **credentials(folder, operator.port), **place)
    try:
        operator.order(4, run=False)
        until(lambda: operator.polls and "prepared" not in operator.polls[-1], 60, "the worker to be prepared")
        assert operator.polls[0] == {"attempt": 4, "state": "waiting", "prepared": False}
        operator.order(4, run=True)
        code, said = run.ends()
        assert (code, "prepared warm start imported=heavy " in said) == (0, True), said
    finally:
        run.kill()


def test_a_replacement_waits_until_it_is_told_to_begin(program: Path, folder: Path, operator: Operator) -> None:
    operator.order(4, run=False)
    variables = {**credentials(folder, operator.port), **COLD, "TRAINYARD_RENDEZVOUS": "wait", "TRAINYARD_ATTEMPT": "4"}
    with agent(program, folder, STAY, **variables) as run:
        operator.hears("waiting", 4)
        assert not (folder / "ran2-4").exists()
        operator.order(4, run=True)
        assert run.ends()[0] == 0
        assert int(run.file("ran3-4")) > 0
        assert {poll["state"] for poll in operator.polls} <= {"waiting", "running", "ended"}


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        ({"TRAINYARD_RENDEZVOUS": "wait"}, "TRAINYARD_COORDINATOR is not set, so no order can come"),
        ({"TRAINYARD_RENDEZVOUS": "soon"}, "TRAINYARD_RENDEZVOUS must be wait, or not be set, and is 'soon'"),
    ],
)
def test_whom_nobody_could_tell_does_not_wait(
    program: Path, tmp_path: Path, variables: dict[str, str], told: str
) -> None:
    run = Agent(program, tmp_path, "--", "true", **variables)
    assert run.ends()[0] == 2
    assert told in run.message


@pytest.mark.parametrize("state", ["failed", "waiting"])
def test_a_worker_at_rest_ends_when_it_is_asked_to(program: Path, folder: Path, operator: Operator, state: str) -> None:
    with agent(program, folder, f"{STAY}\nsys.exit(7)", **credentials(folder, operator.port), **COLD) as run:
        operator.hears("failed")
        if state == "waiting":
            operator.order(2, run=False)
            operator.hears("waiting", 2)
        run.process.send_signal(signal.SIGTERM)
        assert run.ends()[0] == (7 if state == "failed" else 143)


def test_a_failure_after_the_request_to_end_is_not_restarted(program: Path, folder: Path, operator: Operator) -> None:
    script = (
        f"{STAY}\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(90))\nsay(f'ready{{R}}', 'yes')\ntime.sleep(600)"
    )
    with agent(program, folder, script, **credentials(folder, operator.port), **COLD) as run:
        run.file("ready2")
        run.file("ready3")
        operator.hears("running")
        run.process.send_signal(signal.SIGTERM)
        assert run.ends()[0] == 90
        assert {poll["state"] for poll in operator.polls} == {"running", "ended"}


def test_the_agent_itself_imports_nothing_of_https_before_the_ranks_start() -> None:
    """It would cost each start some ten milliseconds."""
    script = "import sys, trainyard_agent.main; print('ssl' in sys.modules)"
    environment = {"PYTHONPATH": str(AGENT), "PYTHONDONTWRITEBYTECODE": "1"}
    assert subprocess.check_output([sys.executable, "-c", script], env=environment, text=True) == "False\n"


def test_where_the_ranks_stand_is_said_when_another_worker_was_the_first_to_hang(
    program: Path, folder: Path, operator: Operator
) -> None:
    script = f"""{STAY}
from trainyard_agent import progress
progress(1)
def all_reduce():
    say(f"there{{R}}", "yes")
    time.sleep(600)
all_reduce()
"""
    with agent(program, folder, script, **credentials(folder, operator.port), **COLD) as run:
        run.file("there2")
        run.file("there3")
        operator.orders = {"attempt": 2, "run": False, "hung": True}
        operator.hears("waiting", 2)
        run.process.terminate()
        said = run.ends()[1]
    for rank in (2, 3):
        assert f"rank {rank} hangs, or waits for a rank that does" in said
    assert said.count("in all_reduce") == 2


def test_without_a_hang_nobody_is_asked(program: Path, folder: Path, operator: Operator) -> None:
    script = f"{STAY}\nfrom trainyard_agent import progress\nprogress(1)\ntime.sleep(600)"
    with agent(program, folder, script, **credentials(folder, operator.port), **COLD) as run:
        run.file("ran2-1")
        run.file("ran3-1")
        operator.order(2, run=False)
        operator.hears("waiting", 2)
        run.process.terminate()
        assert "hangs" not in run.ends()[1]
