"""The agent as a program, with real processes as its ranks."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.unit.agent.agent_process import AgentProcess, is_alive, running_agent, running_shell
from tests.unit.agent.worker_environment import AGENT_SOURCE


def test_success_requires_all_ranks(program: Path, tmp_path: Path) -> None:
    # In one write: print() makes two of them, and those of two ranks can get mixed.
    script = 'record(f"rank{R}", os.environ["LOCAL_RANK"]); sys.stderr.write("to stderr\\n")'
    with running_agent(program, tmp_path, script) as run:
        assert run.wait() == (0, "to stderr\n" * 2)
        assert (run.file("rank2"), run.file("rank3"), run.message) == ("0", "1", "")


def test_first_failure_stops_others_and_is_named(program: Path, tmp_path: Path) -> None:
    script = """
record(f"pid{R}", os.getpid())
while not os.path.exists("pid2"): time.sleep(0.01)
if R == 3: raise ValueError("boom")
time.sleep(600)
"""
    with running_agent(program, tmp_path, script) as run:
        code, errors = run.wait()
        assert code == 1
        assert run.message.startswith("rank 3 exited with code 1: ValueError: boom\nTraceback (most recent call last):")
        assert run.message.endswith("ValueError: boom")
        assert "ValueError: boom" in errors
        assert not is_alive(int(run.file("pid2")))


def test_last_step_of_failed_rank_is_reported(program: Path, tmp_path: Path) -> None:
    """Also without hang detection, and if the last report contained only a phase."""
    script = """
from trainyard_agent import progress
progress(41 + R)
progress(phase="checkpoint")
record(f"ready{R}", "yes")
while not os.path.exists("ready2"): time.sleep(0.01)
if R == 3: raise ValueError("boom")
time.sleep(600)
"""
    with running_agent(program, tmp_path, script, TRAINYARD_HANG_TIMEOUT_SECONDS="0") as run:
        assert run.wait()[0] == 1
        assert run.message.startswith("rank 3 exited with code 1: ValueError: boom\nTraceback")
        assert run.data is not None
        assert run.data.step == 44


def test_process_trees_are_killed_with_their_rank(program: Path, tmp_path: Path) -> None:
    """Children in other sessions, orphans, and processes that ignore signals."""
    script = """
if R == 2:
    quiet = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    child = subprocess.Popen([sys.executable, "-c", quiet], start_new_session=True)
    orphan = subprocess.run(["sh", "-c", "sleep 600 >/dev/null 2>&1 & echo $!"], capture_output=True, text=True).stdout
    record("left", f"{child.pid} {orphan}")
    os._exit(0)
while not os.path.exists("left"): time.sleep(0.01)
os.kill(os.getpid(), signal.SIGKILL)
"""
    with running_agent(program, tmp_path, script) as run:
        assert run.wait()[0] == 137
        assert run.message == "rank 3 was killed by SIGKILL"
        assert [pid for pid in map(int, run.file("left").split()) if is_alive(pid)] == []


def test_rank_that_ignores_sigterm_is_killed(program: Path, tmp_path: Path) -> None:
    script = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
record(f"pid{R}", os.getpid())
while not os.path.exists("pid2"): time.sleep(0.01)
if R == 3: sys.exit(7)
time.sleep(600)
"""
    with running_agent(program, tmp_path, script) as run:
        assert run.wait()[0] == 7
        assert not is_alive(int(run.file("pid2")))


@pytest.mark.parametrize("wrapped", [False, True])
def test_sigterm_reaches_ranks_which_may_save(
    program: Path,
    tmp_path: Path,
    *,
    wrapped: bool,
) -> None:
    """Also through a shell, which does not forward it."""
    script = """
def end(*_):
    time.sleep(0.5 if R == 2 else 0)
    record(f"saved{R}", "yes")
    sys.exit(90)
signal.signal(signal.SIGTERM, end)
record(f"ready{R}", "yes")
time.sleep(600)
"""
    run_script = running_shell if wrapped else running_agent
    with run_script(program, tmp_path, script) as run:
        run.file("ready2")
        run.file("ready3")
        run.process.send_signal(signal.SIGTERM)
        code, _ = run.wait()
        assert (run.file("saved2"), run.file("saved3")) == ("yes", "yes")
        assert code == (143 if wrapped else 90)


def test_other_signals_are_forwarded(program: Path, tmp_path: Path) -> None:
    script = """
signal.signal(signal.SIGUSR1, lambda *_: record(f"signalled{R}", "yes"))
record(f"ready{R}", "yes")
while not os.path.exists("signalled2") or not os.path.exists("signalled3"): time.sleep(0.01)
"""
    with running_agent(program, tmp_path, script) as run:
        run.file("ready2")
        run.file("ready3")
        run.process.send_signal(signal.SIGUSR1)
        assert run.wait()[0] == 0


def test_exit_is_detected_within_100_ms(program: Path, tmp_path: Path) -> None:
    """Measured from the last statement of one rank to the signal in the other one."""
    script = """
if R == 2:
    def signalled(*_):
        record("signalled", time.monotonic())
        os._exit(0)
    signal.signal(signal.SIGTERM, signalled)
    record("ready", "yes")
    time.sleep(600)
while not os.path.exists("ready"): time.sleep(0.01)
record("fell", time.monotonic())
os._exit(1)
"""
    delays = []
    for attempt in range(5):
        (tmp_path / str(attempt)).mkdir()
        with running_agent(program, tmp_path / str(attempt), script) as run:
            run.wait()
            delays.append(float(run.file("signalled")) - float(run.file("fell")))
    assert min(delays) < 0.1, delays


HANGS = """
from trainyard_agent import progress
def load(): time.sleep(600)
def wait_for_others(): time.sleep(600)
for step in range(10):
    progress(step)
    time.sleep(0.3)
load() if R == 6 else wait_for_others()
"""


def test_hung_rank_is_named_with_its_location(program: Path, tmp_path: Path) -> None:
    with running_agent(
        program, tmp_path, HANGS, TRAINYARD_HANG_TIMEOUT_SECONDS="2", TRAINYARD_PROCESSES_PER_REPLICA="4"
    ) as run:
        code, errors = run.wait()
        headline, *stacks = run.message.splitlines()
        assert code == 91
        assert headline.startswith("rank 6 is hung at script.py:")
        assert " in load: no progress for " in headline
        assert "after step 9 (usual step time 0." in headline
        assert headline.endswith("; all other ranks of the worker are elsewhere")
        assert [line.partition(":")[0] for line in stacks] == [f"rank {rank}" for rank in range(4, 8)]
        assert " in wait_for_others < script.py:" in stacks[0]
        assert run.data is not None
        assert (run.data.kind, run.data.step, run.data.outlier) == ("hung", 9, True)
        assert errors.count("most recent call first") >= 4


def test_stopped_rank_is_named_by_its_step(program: Path, tmp_path: Path) -> None:
    """A stopped rank writes no stack."""
    script = "from trainyard_agent import progress\nfor step in range(8): progress(step); time.sleep(0.3)\n"
    script += "if R == 3: os.kill(os.getpid(), signal.SIGSTOP)\nprogress(8); time.sleep(600)"
    with running_agent(program, tmp_path, script, TRAINYARD_HANG_TIMEOUT_SECONDS="2") as run:
        assert run.wait()[0] == 91
        assert run.message.startswith("rank 3 is hung")
        assert " after step 7 " in run.message


def test_rank_stopped_in_lockstep_is_named(program: Path, tmp_path: Path) -> None:
    script = HANGS.replace("load() if R == 6", "os.kill(os.getpid(), signal.SIGSTOP) if R == 6")
    with running_agent(
        program, tmp_path, script, TRAINYARD_HANG_TIMEOUT_SECONDS="2", TRAINYARD_PROCESSES_PER_REPLICA="4"
    ) as run:
        assert run.wait()[0] == 91
        headline, *stacks = run.message.splitlines()
        assert headline.startswith("rank 6 is hung, stopped by a signal: no progress for ")
        assert headline.endswith("; all other ranks of the worker are elsewhere")
        assert "rank 6: (stopped by a signal)" in stacks


LOSES = """
if R == 2:
    while not os.path.exists("raised"): time.sleep(0.01)
    sys.exit("RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.1]:5000")
try:
    raise ValueError("the real cause")
except ValueError:
    import traceback; traceback.print_exc()
    record("raised", "")
    time.sleep(0.7)
    sys.exit(93)
"""


def test_rank_that_failed_first_is_root_cause(program: Path, tmp_path: Path) -> None:
    with running_agent(program, tmp_path, LOSES) as run:
        assert run.wait()[0] == 93
        assert run.message.startswith("rank 3 exited with code 93: ValueError: the real cause")


def test_first_peer_loss_is_reported_immediately(program: Path, tmp_path: Path) -> None:
    script = 'if R == 3: time.sleep(0.3)\nsys.exit("Broken pipe")'
    with running_agent(program, tmp_path, script) as run:
        assert run.wait()[0] == 1
        assert run.message.startswith("rank 2 exited with code 1: Broken pipe")


def test_rank_without_progress_is_never_hung(program: Path, tmp_path: Path) -> None:
    for seconds, script in (("1", "time.sleep(4)"), ("0", HANGS.replace("time.sleep(600)", "time.sleep(3)"))):
        with running_agent(program, tmp_path, script, TRAINYARD_HANG_TIMEOUT_SECONDS=seconds) as run:
            assert run.wait() == (0, "")


def test_malformed_progress_is_logged_once(program: Path, tmp_path: Path) -> None:
    script = 'open(os.environ["TRAINYARD_PROGRESS_FILE"], "w").write("nan" if R == 2 else "7")\ntime.sleep(4)'
    with running_agent(program, tmp_path, script, TRAINYARD_HANG_TIMEOUT_SECONDS="5") as run:
        code, errors = run.wait()
        assert (code, errors.splitlines()) == (
            0,
            ["trainyard-agent: cannot read the progress of rank 2: Expecting value: line 1 column 1 (char 0)"],
        )


def test_progress_folder_is_removed(program: Path, tmp_path: Path) -> None:
    script = (
        'record(f"file{R}", os.environ["TRAINYARD_PROGRESS_FILE"])\nfrom trainyard_agent import progress\nprogress(1)'
    )
    with running_agent(program, tmp_path, script) as run:
        assert run.wait() == (0, "")
        files = [Path(run.file("file2")), Path(run.file("file3"))]
        assert files[0].parent == files[1].parent
        assert not files[0].parent.exists()


@pytest.mark.parametrize(
    ("command", "code", "text"),
    [
        ([], 2, "usage: trainyard-agent"),
        (["--"], 2, "usage: trainyard-agent"),
        (["--help"], 2, "usage: trainyard-agent"),
        (["--", "no-such-program"], 127, "cannot start no-such-program: No such file or directory"),
        (["--", "/etc"], 126, "cannot start /etc: Permission denied"),
    ],
)
def test_failed_start_is_reported(program: Path, tmp_path: Path, command: list[str], code: int, text: str) -> None:
    run = AgentProcess(program, tmp_path, *command)
    exit_code, errors = run.wait()
    assert (exit_code, text in errors, text in run.message) == (code, True, True)


def test_temporary_start_failure_can_be_retried(program: Path, tmp_path: Path) -> None:
    (tmp_path / "busy").touch(0o755)
    with (tmp_path / "busy").open("wb"):
        run = AgentProcess(program, tmp_path, "--", "./busy")
        assert run.wait()[0] == 1
    assert run.message == "cannot start ./busy: Text file busy"


def test_missing_variable_is_named(program: Path, tmp_path: Path) -> None:
    run = AgentProcess(program, tmp_path, "--", "true", TRAINYARD_PROCESSES_PER_REPLICA="")
    assert run.wait()[0] == 2
    assert run.message == "TRAINYARD_PROCESSES_PER_REPLICA must be an integer from 1 to 1024, got ''"
    run = AgentProcess(program, tmp_path, "--", "true", TRAINYARD_HANG_TIMEOUT_SECONDS="soon")
    assert run.wait()[0] == 2
    assert run.message == "TRAINYARD_HANG_TIMEOUT_SECONDS must be an integer from 0 to 604800, got 'soon'"


def test_closed_log_does_not_stop_ranks(program: Path, tmp_path: Path) -> None:
    script = 'record(f"ready{R}", "yes")\nwhile not os.path.exists("go"): time.sleep(0.01)\n'
    script += 'for _ in range(2000): sys.stderr.write("x" * 100)\nsys.exit(3 if R == 3 else 0)'
    with running_agent(program, tmp_path, script) as run:
        run.file("ready2")
        run.file("ready3")
        assert run.process.stderr is not None
        run.process.stderr.close()
        (tmp_path / "go").touch()
        assert run.process.wait(timeout=60) == 3


def test_unwritable_termination_log_is_reported(program: Path, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with running_agent(program, tmp_path, "sys.exit(5)", TRAINYARD_TERMINATION_LOG=str(tmp_path / "folder")) as run:
        code, errors = run.wait()
        assert (code, ": Is a directory" in errors) == (5, True)


def test_non_ascii_output_without_unicode_is_reported(program: Path, tmp_path: Path) -> None:
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    script = 'sys.stderr.buffer.write("\\u4f60".encode()); sys.exit(93)'
    with running_agent(program, tmp_path, script, **locale) as run:
        assert run.wait()[0] == 93
        assert run.message.endswith("exited with code 93: \u4f60\n\u4f60")


def test_last_output_of_reaped_rank_is_read(tmp_path: Path) -> None:
    """Signal and output arrive together, the signal first: both ranks are reaped before the output is read."""
    script = """
import os, time
from trainyard_agent.group import Group
from trainyard_agent.processes import descendants
os.mkfifo("go")
command = ["sh", "-c", 'test "$RANK" = 0 && exit 5; read line < go; echo last >&2; exit 6']
with Group() as group:
    group.start(command, {rank: {**os.environ, "RANK": str(rank)} for rank in (0, 1)})
    while len(descendants(os.getpid())) > 1: time.sleep(0.01)
    open("go", "w").close()
    while descendants(os.getpid()): time.sleep(0.01)
    while group.running: group.wait(5)
    print(sorted((e.rank, e.code, e.output) for e in group.exits))
"""
    ran = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(AGENT_SOURCE), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ran.stdout, ran.stderr) == ("[(0, 5, ''), (1, 6, 'last\\n')]\n", "last\n")


def test_endless_output_does_not_delay_exit(program: Path, tmp_path: Path) -> None:
    script = 'subprocess.Popen(["sh", "-c", "while :; do echo x >&2; done"]); sys.exit(4)'
    with running_agent(program, tmp_path, script) as run:
        began = time.monotonic()
        assert run.wait()[0] == 4
        assert time.monotonic() - began < 30
