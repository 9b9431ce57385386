"""Ranks save their work when they are asked to exit: in a pod that ends, in a worker that stays, and below a launcher."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.polling import until
from tests.unit.agent.agent_process import AgentProcess, is_alive, running_agent
from tests.unit.agent.fake_operator import FakeOperator, credentials
from tests.unit.agent.rank_scripts import RANK_PRELUDE, WARM_START_OFF
from trainyard_agent.signalling import Signalling

SAVES = """
def save(*_):
    record(f"asked{R}", time.monotonic())
    for _ in range(40): time.sleep(0.1)
    record(f"saved{R}", time.monotonic())
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
record(f"ready{R}", os.getpid())
"""
BLOCKED = """
import ctypes
signal.signal(signal.SIGTERM, lambda *_: record(f"handled{R}", "yes"))
record(f"blocked{R}", os.getpid())
lock, condition = ctypes.create_string_buffer(64), ctypes.create_string_buffer(64)
libc = ctypes.CDLL(None)
libc.pthread_mutex_lock(lock)
while True: libc.pthread_cond_wait(condition, lock)
"""
"""As gloo waits for a peer: in C, for a lock, so that no handler of Python runs."""


def test_survivor_saves_before_it_restarts(program: Path, folder: Path, operator: FakeOperator) -> None:
    script = f"{RANK_PRELUDE}\nif A == '2': sys.exit(0)\n{SAVES}\ntime.sleep(600)"
    with running_agent(program, folder, script, **credentials(folder, operator.port), **WARM_START_OFF) as run:
        run.file("ready2")
        run.file("ready3")
        operator.wait_for("running")
        operator.order(2, run=False)
        operator.wait_for("waiting", 2)
        assert (folder / "saved2").exists()
        assert (folder / "saved3").exists()
        operator.order(2, run=True)
        assert run.wait()[0] == 0


def test_rank_saves_after_another_one_failed(program: Path, tmp_path: Path) -> None:
    script = f"""
if R == 3:
    while not os.path.exists("ready2"): time.sleep(0.01)
    sys.exit(5)
{SAVES}
time.sleep(600)
"""
    with running_agent(program, tmp_path, script) as run:
        assert run.wait()[0] == 5
        assert (tmp_path / "saved2").exists()


def test_restart_grace_limits_saving(program: Path, tmp_path: Path) -> None:
    script = f"""
if R == 3:
    while not os.path.exists("ready2"): time.sleep(0.01)
    record("failed", time.monotonic())
    sys.exit(5)
{SAVES}
time.sleep(600)
"""
    with running_agent(program, tmp_path, script, TRAINYARD_RESTART_GRACE_SECONDS="0") as run:
        assert run.wait()[0] == 5
        assert not (tmp_path / "saved2").exists()
        assert time.monotonic() - float(run.file("failed")) < 4


@pytest.mark.parametrize("blocks", [BLOCKED, "signal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(600)"])
def test_blocked_rank_does_not_delay_restart(program: Path, tmp_path: Path, blocks: str) -> None:
    script = f"""
if R == 3:
    time.sleep(1)
    record("failed", time.monotonic())
    sys.exit(5)
{blocks}
"""
    with running_agent(program, tmp_path, script) as run:
        assert run.wait()[0] == 5
        assert time.monotonic() - float(run.file("failed")) < 4.5


def test_blocked_rank_waits_for_rank_that_saves(program: Path, tmp_path: Path) -> None:
    """It may be part of the same checkpoint."""
    script = f"""
if R == 4:
    while not (os.path.exists("ready5") and os.path.exists("blocked6")): time.sleep(0.01)
    sys.exit(5)
if R == 6:
    exec({BLOCKED!r})
if R == 7: time.sleep(600)
{SAVES}
time.sleep(600)
"""
    with running_agent(program, tmp_path, script, TRAINYARD_PROCESSES_PER_REPLICA="4") as run:
        run.file("saved5")
        assert run.wait()[0] == 5


TORCHRUN = """
import os, signal, subprocess, sys, time
class Stop(Exception): pass
def stop(number, _): raise Stop(number)
for number in (signal.SIGTERM, signal.SIGINT): signal.signal(number, stop)
ranks = []
for local in range(2):
    variables = {**os.environ, "RANK": str(2 + local), "LOCAL_RANK": str(local), "TORCHELASTIC_RUN_ID": "run"}
    ranks.append(subprocess.Popen([sys.executable, sys.argv[1]], env=variables, start_new_session=True))
try:
    while any(rank.poll() is None for rank in ranks):
        if any(rank.poll() for rank in ranks): raise Stop(signal.SIGTERM)
        time.sleep(0.1)
    open("barrier", "w").close()
    time.sleep(600)
except Stop as stop:
    for rank in ranks:
        if rank.poll() is None: os.killpg(rank.pid, stop.args[0])
    time.sleep(1)
    for rank in ranks:
        if rank.poll() is None: os.killpg(rank.pid, signal.SIGKILL)
    sys.exit(1)
"""
"""It stops its ranks by process group, kills them after a while, and waits for the other workers when they have exited."""
LOADER = """
import multiprocessing
def load():
    def signalled(*_):
        # multiprocessing itself ends it when the rank exits.
        if not os.path.exists(f"saved{R}"): record(f"loader{R}", "signalled")
        os._exit(1)
    signal.signal(signal.SIGTERM, signalled)
    signal.signal(signal.SIGINT, signalled)
    record(f"loading{R}", os.getpid())
    time.sleep(600)
multiprocessing.get_context("fork").Process(target=load, daemon=True).start()
while not os.path.exists(f"loading{R}"): time.sleep(0.01)
"""


def launch(program: Path, folder: Path, script: str, *command: str, **environment: str) -> AgentProcess:
    """Run a command once, which starts the script as its ranks."""
    (folder / "torchrun").write_text(f"#!{sys.executable}\n{TORCHRUN}")
    (folder / "torchrun").chmod(0o755)
    (folder / "script.py").write_text(
        'import os, signal, sys, time\nR = int(os.environ["RANK"])\n'
        "def record(name, text):\n"
        '    with open(name + ".new", "w") as file: file.write(str(text))\n'
        '    os.rename(name + ".new", name)\n' + script
    )
    return AgentProcess(program, folder, "--once", "--", *command, **environment)


@pytest.mark.parametrize(
    "command",
    [
        ["./torchrun", "script.py"],
        ["sh", "-c", "./torchrun script.py; exit $?"],
        ["timeout", "600", "./torchrun", "script.py"],
        ["sh", "-c", "./torchrun script.py 2>&1 | tee log"],
    ],
)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_rank_of_launcher_has_time_to_save(
    program: Path, tmp_path: Path, command: list[str], number: signal.Signals
) -> None:
    """One rank exits at once, the other one saves; no data loader gets the signal."""
    script = LOADER + SAVES.replace("range(40)", "range(40 if R == 2 else 0)").replace("sys.exit(0)", "sys.exit(R - 2)")
    run = launch(
        program, tmp_path, script.replace("signal.SIGTERM, save", f"{number:d}, save") + "\ntime.sleep(600)", *command
    )
    try:
        run.file("ready2")
        run.file("ready3")
        run.process.send_signal(number)
        run.file("saved2")
        began = time.monotonic()
        code, errors = run.wait()
        assert time.monotonic() - began < 10
        if command[0] == "./torchrun":
            assert (code, "Traceback" in errors) == (1, False), "the exit code is that of the rank that failed"
        assert (tmp_path / "saved3").exists()
        assert not any((tmp_path / f"loader{rank}").exists() for rank in (2, 3))
    finally:
        run.kill()


def test_second_signal_after_ranks_have_exited_ends_launcher(tmp_path: Path) -> None:
    (tmp_path / "torchrun").write_text(TORCHRUN)
    (tmp_path / "rank.py").write_text(
        "import os, time\nopen('ready' + os.environ['RANK'], 'w').close()\ntime.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "torchrun", "rank.py"], cwd=tmp_path) as launcher:
        until(lambda: (tmp_path / "ready2").exists() and (tmp_path / "ready3").exists(), 30, "the ranks")
        signalling = Signalling()
        signalling.send(signal.SIGTERM, launcher.pid, starts_ranks=True)
        until(lambda: not signalling.running, 30, "the ranks to exit")
        signalling.send(signal.SIGTERM, launcher.pid, starts_ranks=True)
        signalling.release()
        assert launcher.wait(30) == -signal.SIGKILL
        assert signalling.ended == {launcher.pid: 143}


def test_survivor_below_launcher_saves(program: Path, folder: Path, operator: FakeOperator) -> None:
    script = f"if os.environ['TRAINYARD_ATTEMPT'] == '2': time.sleep(600)\n{LOADER}{SAVES}\ntime.sleep(600)"
    run = launch(program, folder, script, "./torchrun", "script.py", **credentials(folder, operator.port))
    try:
        run.file("ready2")
        run.file("ready3")
        operator.wait_for("running")
        operator.order(2, run=False)
        operator.wait_for("waiting", 2)
        assert (folder / "saved2").exists()
        assert (folder / "saved3").exists()
    finally:
        run.kill()


def test_other_signals_spare_the_launcher(program: Path, tmp_path: Path) -> None:
    script = """
signal.signal(signal.SIGUSR1, lambda *_: record(f"signalled{R}", "yes"))
record(f"ready{R}", "yes")
time.sleep(600)
"""
    run = launch(program, tmp_path, script, "./torchrun", "script.py")
    try:
        run.file("ready2")
        run.file("ready3")
        run.process.send_signal(signal.SIGUSR1)
        run.file("signalled2")
        run.file("signalled3")
        assert run.process.poll() is None
    finally:
        run.kill()


@pytest.mark.parametrize(
    "number", [signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGPWR, signal.SIGRTMIN + 3, signal.SIGUSR1]
)
def test_stop_signal_of_image_is_no_failure(program: Path, folder: Path, operator: FakeOperator, number: int) -> None:
    """Ranks without a handler end by it."""
    script = f"{RANK_PRELUDE}\nsignal.signal(signal.SIGINT, signal.SIG_DFL)\nrecord(f'ready{{R}}', 1)\ntime.sleep(600)"
    with running_agent(program, folder, script, **credentials(folder, operator.port), **WARM_START_OFF) as run:
        run.file("ready2")
        run.file("ready3")
        operator.wait_for("running")
        run.process.send_signal(number)
        assert run.wait()[0] == 128 + number
        assert "failed" not in {poll["state"] for poll in operator.polls}


def test_replaced_worker_leaves_its_ranks_time(program: Path, folder: Path, operator: FakeOperator) -> None:
    """A preStop hook may signal one rank alone, before the kubelet signals the agent."""
    script = f"{RANK_PRELUDE}{SAVES.replace('SIGTERM', 'SIGUSR1')}\ntime.sleep(600)"
    variables = {**credentials(folder, operator.port), **WARM_START_OFF, "TRAINYARD_RESTART_GRACE_SECONDS": "0"}
    with running_agent(program, folder, script.replace("range(40)", "range(40 if R == 2 else 0)"), **variables) as run:
        ranks = [int(run.file(f"ready{rank}")) for rank in (2, 3)]
        operator.wait_for("running")
        operator.fixed_answer = (410, {"reason": "Replaced", "message": "the pod is deleted"})
        time.sleep(1)
        os.kill(ranks[0], signal.SIGUSR1)
        os.kill(ranks[1], signal.SIGKILL)
        assert run.wait()[0] == 137
        assert (folder / "saved2").exists()


def test_launcher_that_forwards_output_is_not_stopped(program: Path, tmp_path: Path) -> None:
    """As mpirun does: ranks that print more than a pipe holds would wait for it."""
    script = SAVES.replace('record(f"saved', 'print("x" * 200_000, flush=True); record(f"saved') + "\ntime.sleep(600)"
    forwards = f"""
import os, subprocess, sys
variables = {{**os.environ, "RANK": "2", "PMI_RANK": "2"}}
rank = subprocess.Popen([{sys.executable!r}, "script.py"], env=variables, stdout=subprocess.PIPE)
for line in rank.stdout: sys.stdout.write(str(len(line)) + chr(10))
sys.exit(rank.wait())
"""
    (tmp_path / "mpirun").write_text(f"#!{sys.executable}\n{forwards}")
    (tmp_path / "mpirun").chmod(0o755)
    run = launch(program, tmp_path, script, "./mpirun")
    try:
        run.file("ready2")
        run.process.send_signal(signal.SIGTERM)
        run.file("saved2")
        run.wait()
    finally:
        run.kill()


@pytest.mark.parametrize(
    "command",
    [
        ["timeout", "600", sys.executable, "script.py"],
        ["sh", "-c", f"sh -c '{sys.executable} script.py; exit $?'; exit $?"],
        ["./run.sh"],
        ["sh", "-c", f"timeout 600 {sys.executable} script.py; exit $?"],
    ],
)
def test_wrapped_rank_saves_without_its_loader(program: Path, tmp_path: Path, command: list[str]) -> None:
    (tmp_path / "script.py").write_text(
        'import os, signal, sys, time\nR = int(os.environ["RANK"])\n'
        "def record(name, text):\n"
        '    with open(name + ".new", "w") as file: file.write(str(text))\n'
        '    os.rename(name + ".new", name)\n' + LOADER + SAVES + "\ntime.sleep(600)"
    )
    (tmp_path / "run.sh").write_text(f"#!/bin/sh\n{sys.executable} script.py\necho done\n")
    (tmp_path / "run.sh").chmod(0o755)
    run = AgentProcess(program, tmp_path, "--", *command, TRAINYARD_PROCESSES_PER_REPLICA="1", RANK="1")
    try:
        run.file("ready1")
        run.process.send_signal(signal.SIGTERM)
        run.file("saved1")
        run.wait()
        assert not (tmp_path / "loader1").exists()
        assert not is_alive(int(run.file("loading1")))
    finally:
        run.kill()


def test_launcher_without_rank_variables_is_signalled(program: Path, tmp_path: Path) -> None:
    """A launcher that has not started its ranks yet."""
    run = launch(program, tmp_path, "", "sh", "-c", "touch started; echo ready > ready; sleep 600")
    try:
        run.file("ready")
        run.process.send_signal(signal.SIGTERM)
        assert run.wait()[0] == 143
    finally:
        run.kill()
