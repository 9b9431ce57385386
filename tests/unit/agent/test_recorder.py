"""Flight recorders of hung ranks, which write as torch does with NCCL."""

import os
import pickle
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.agent.agent_process import AgentProcess, running_agent
from tests.unit.agent.worker_environment import WORKER_VARIABLES
from trainyard_agent import recorder
from trainyard_agent.ranks import place
from trainyard_agent.recorder import (
    FILE_VARIABLES,
    FOLDER_VARIABLE,
    KEPT_ATTEMPTS,
    PIPE_VARIABLE,
    SETTLED_SECONDS,
    Recorder,
    defaults,
)

NCCL = """
import threading
def monitor():
    stem = os.environ["TORCH_NCCL_DEBUG_INFO_PIPE_FILE"]
    os.mkfifo(f"{stem}{R}.pipe")
    pipe = os.open(f"{stem}{R}.pipe", os.O_RDONLY | os.O_NONBLOCK)
    record(f"ready{R}", "yes")
    while not os.read(pipe, 128): time.sleep(0.05)
    if os.environ.get("DUMB"): return
    with open(os.environ["TORCH_FR_DUMP_TEMP_FILE"] + str(R), "wb") as file:
        for _ in range(5):
            file.write(b"trace" * 1000)
            file.flush()
            time.sleep(0.05)
threading.Thread(target=monitor, daemon=True).start()
"""
HANGS = """
from trainyard_agent import progress
for step in range(6):
    progress(step)
    time.sleep(0.3)
time.sleep(600)
"""


def test_flight_recorders_of_hung_ranks_are_kept(program: Path, tmp_path: Path) -> None:
    script = (NCCL + HANGS).replace("threading.Thread", "if R != 4: threading.Thread")
    own = {FOLDER_VARIABLE: str(tmp_path / "kept"), "TRAINYARD_JOB_NAME": "resnet"}
    with running_agent(
        program, tmp_path, script, TRAINYARD_HANG_TIMEOUT_SECONDS="2", TRAINYARD_PROCESSES_PER_REPLICA="3", **own
    ) as run:
        code, errors = run.wait()
        folder = tmp_path / "kept/flight-recorder-resnet-uid/1"
        line = f"flight recorder of ranks 3, 5 kept in {folder}"
        assert code == 91
        assert run.data is not None
        assert (run.data.step, run.message.splitlines()[-1]) == (5, line)
        assert errors.splitlines().count(f"trainyard-agent: {line}") == 1
        assert {file.name: file.stat().st_size for file in folder.iterdir()} == {"rank_3": 25_000, "rank_5": 25_000}


def test_launcher_ranks_are_found_by_their_pipes(program: Path, tmp_path: Path) -> None:
    """torchrun sorts workers as text, so that ranks can be on other workers than expected."""
    begin = 'import os, sys, time\nR = os.environ["RANK"]\ndef record(*_): pass\n'
    (tmp_path / "rank.py").write_text(begin + NCCL + HANGS)
    launch = f"for rank in 3 17; do RANK=$rank {sys.executable} rank.py & done; wait"
    own = {FOLDER_VARIABLE: str(tmp_path / "kept"), "TRAINYARD_HANG_TIMEOUT_SECONDS": "2"}
    run = AgentProcess(program, tmp_path, "--once", "--", "sh", "-c", launch, **own)
    try:
        assert run.wait()[0] == 91
        assert f"flight recorder of ranks 3, 17 kept in {tmp_path}/kept/flight-recorder-job-uid/1" in run.message
    finally:
        run.kill()


def test_agent_stops_waiting_for_a_silent_rank(program: Path, tmp_path: Path) -> None:
    own = {FOLDER_VARIABLE: str(tmp_path / "kept"), "DUMB": "1"}
    with running_agent(program, tmp_path, NCCL + HANGS, TRAINYARD_HANG_TIMEOUT_SECONDS="2", **own) as run:
        code, errors = run.wait()
        assert (code, "flight recorder" in run.message + errors) == (91, False)
        assert not [each for each in (tmp_path / "kept").rglob("*") if each.is_file()]


def test_nothing_is_recorded_without_nccl(program: Path, tmp_path: Path) -> None:
    with running_agent(
        program, tmp_path, HANGS, TRAINYARD_HANG_TIMEOUT_SECONDS="2", **{FOLDER_VARIABLE: str(tmp_path / "kept")}
    ) as run:
        code, errors = run.wait()
        assert (code, "flight recorder" in run.message + errors) == (91, False)
        assert not [each for each in (tmp_path / "kept").rglob("*") if each.is_file()]


def test_recorder_written_by_nccl_timeout_is_reported(program: Path, tmp_path: Path) -> None:
    script = """
stem = os.environ["TORCH_NCCL_DEBUG_INFO_TEMP_FILE"]
with open(stem + str(R), "w") as file: file.write("trace")
while R == 3 and not (os.path.exists(stem + "2") and os.path.getsize(stem + "2")): time.sleep(0.01)
sys.exit(R == 3)
"""
    with running_agent(program, tmp_path, script, **{FOLDER_VARIABLE: str(tmp_path / "kept")}) as run:
        code, errors = run.wait()
        assert code == 1
        assert f"ranks 2, 3 kept in {tmp_path}/kept/flight-recorder-job-uid/1" in errors


def recorder_of(folder: Path, attempt: int = 1, /, **environment: str) -> Recorder:
    """Return the recorder of worker 1, which has the ranks 2 and 3."""
    return timed_recorder(folder, time.monotonic, attempt, **environment)


def timed_recorder(folder: Path, clock: Callable[[], float], attempt: int = 1, /, **environment: str) -> Recorder:
    """Return the same with this clock."""
    variables = {FOLDER_VARIABLE: str(folder), **environment}
    return Recorder(variables, place({**WORKER_VARIABLES, "TRAINYARD_ATTEMPT": str(attempt)}), lambda _: None, clock)


def test_recorders_of_recent_attempts_are_kept(tmp_path: Path) -> None:
    job = tmp_path / "flight-recorder-job"
    for attempt in range(1, 8):
        with recorder_of(tmp_path, attempt) as each:
            if attempt != 6:
                Path(f"{each.variables[FILE_VARIABLES[0]]}2").write_text("trace")
            os.utime(job / str(attempt), ns=(attempt, attempt))
    assert sorted(folder.name for folder in job.iterdir()) == ["4", "5", "7"]
    assert KEPT_ATTEMPTS == 3
    (job / "notes").mkdir()
    with recorder_of(tmp_path, 8):
        assert sorted(folder.name for folder in job.iterdir()) == ["5", "7", "8", "notes"]


def test_first_exit_keeps_the_shared_folder(tmp_path: Path) -> None:
    """On a volume, the workers of an attempt share one folder."""
    folder = tmp_path / "flight-recorder-job/1"
    with recorder_of(tmp_path) as ours:
        with recorder_of(tmp_path):
            pass
        assert folder.is_dir(), "it has failed, and others may fail"
        with recorder_of(tmp_path) as other:
            other.finish()
        assert not folder.exists(), "it has succeeded, and others will"
        ours.keep()
        assert folder.is_dir(), "or may fail"
    with recorder_of(tmp_path, 2):
        assert [each.name for each in folder.parent.iterdir()] == ["2"]


def test_files_of_an_earlier_job_are_ignored(tmp_path: Path) -> None:
    old = tmp_path / "flight-recorder-job/1"
    old.mkdir(parents=True)
    for rank in (2, 3):
        (old / f"rank_{rank}").write_text("long ago")
    with recorder_of(tmp_path) as ours:
        assert ours.summary() == ""
        (old / "rank_3").write_text("just now, and longer")
        (old / "rank_0").write_text("of another worker")
        (old / "rank_2x").write_text("without a rank")
        assert ours.summary() == f"flight recorder of rank 3 kept in {old}"


def test_user_variables_are_preserved(tmp_path: Path) -> None:
    prefix = f"{tmp_path}/mine/dump_"
    with recorder_of(tmp_path, **{FILE_VARIABLES[1]: prefix, PIPE_VARIABLE: f"{tmp_path}/pipe_"}) as ours:
        assert ours.variables == {}
        os.mkfifo(tmp_path / "pipe_3.pipe")
        reader = os.open(tmp_path / "pipe_3.pipe", os.O_RDONLY | os.O_NONBLOCK)
        assert ours.ask()
        assert os.read(reader, 128) != b""
        os.close(reader)
        (tmp_path / "mine").mkdir()
        Path(f"{prefix}3").write_bytes(pickle.dumps({"entries": []}))
        assert [ours.answered(), ours.answered()] == [False, True], "it may still grow at the first check"
        assert ours.summary() == f"flight recorder of rank 3 kept in {tmp_path}/mine"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["mine", "pipe_3.pipe"]


def test_file_that_is_cut_is_no_answer(tmp_path: Path) -> None:
    """A rank that writes a large file pauses for longer than a look takes."""
    now, whole = [0.0], pickle.dumps({"entries": ["all_reduce"] * 100})
    with timed_recorder(tmp_path, lambda: now[0]) as ours:
        os.mkfifo(pipe := f"{ours.variables[PIPE_VARIABLE]}3.pipe")
        reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        assert ours.ask()
        os.close(reader)
        file = Path(f"{ours.variables[FILE_VARIABLES[0]]}3")
        file.write_bytes(whole[:-1])
        assert [ours.answered() for _ in range(5)] == [False] * 5
        file.write_bytes(whole)
        assert [ours.answered(), ours.answered()] == [False, True]
        file.write_bytes(b"another format")
        assert [ours.answered(), ours.answered()] == [False, False]
        now[0] += SETTLED_SECONDS
        assert ours.answered()


def test_only_pipes_with_a_reader_are_signalled(tmp_path: Path) -> None:
    with recorder_of(tmp_path) as ours:
        pipes = Path(ours.variables[PIPE_VARIABLE])
        os.mkfifo(pipes / "2.pipe")
        (pipes / "3.pipe").write_text("")
        (pipes / "4.pipe").symlink_to("/dev/null")
        (pipes / "x.pipe").mkdir()
        assert not ours.ask()
    assert not pipes.exists()


def test_cleared_folder_is_restored(tmp_path: Path) -> None:
    with recorder_of(tmp_path) as ours:
        pipes = Path(ours.variables[PIPE_VARIABLE])
        pipes.rmdir()
        ours.keep()
        assert pipes.stat().st_mode & 0o7777 == 0o1777
        os.mkfifo(pipes / "2.pipe")
        ours.keep()
        assert [*pipes.iterdir()] == [pipes / "2.pipe"]
    assert not pipes.exists()


@pytest.mark.parametrize("shut", ["/dev/null/folder", "/proc/nowhere"])
def test_folder_that_cannot_be_created_is_reported(shut: str) -> None:
    lines: list[str] = []
    with Recorder({FOLDER_VARIABLE: shut}, place(WORKER_VARIABLES), lines.append) as ours:
        assert (ours.variables, ours.ask(), ours.summary()) == ({}, False, "")
    (line,) = lines
    assert line.startswith(f"cannot keep the flight recorder in {shut}, which TRAINYARD_FLIGHT_RECORDER names: ")


def test_default_folder_is_temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "TEMPORARY", Path("/dev/null"))
    monkeypatch.setattr(recorder, "IN_MEMORY", tmp_path)
    with Recorder({"TRAINYARD_JOB_NAME": "../x"}, place(WORKER_VARIABLES), lambda _: None) as ours:
        assert ours.variables[FILE_VARIABLES[0]] == f"{tmp_path}/flight-recorder-..-x/1/rank_"
        assert ours.variables[FILE_VARIABLES[1]] == ours.variables[FILE_VARIABLES[0]]
        assert ours.variables[PIPE_VARIABLE].startswith(f"{tmp_path}/trainyard-pipes-")
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize(
    ("by_hand", "ours"),
    [
        (
            {},
            {"TORCH_FR_BUFFER_SIZE": "2000", "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000", "TORCH_NCCL_DUMP_ON_TIMEOUT": "1"},
        ),
        ({"TORCH_NCCL_TRACE_BUFFER_SIZE": "0"}, {"TORCH_NCCL_DUMP_ON_TIMEOUT": "1"}),
        ({"TORCH_FR_BUFFER_SIZE": "50", "TORCH_NCCL_DUMP_ON_TIMEOUT": "0"}, {}),
    ],
)
def test_defaults_yield_to_user_variables(by_hand: dict[str, str], ours: dict[str, str]) -> None:
    assert defaults(by_hand) == ours


def test_many_ranks_are_named_as_a_range(tmp_path: Path) -> None:
    where = place({**WORKER_VARIABLES, "TRAINYARD_PROCESSES_PER_REPLICA": "40"})
    with Recorder({FOLDER_VARIABLE: str(tmp_path)}, where, lambda _: None) as ours:
        for rank in where.ranks:
            Path(f"{ours.variables[FILE_VARIABLES[0]]}{rank}").write_text("trace")
        assert ours.summary().startswith("flight recorder of ranks 40 to 79 kept in ")


def test_jobs_with_equal_names_have_separate_folders(tmp_path: Path) -> None:
    for uid in ("5f0e2c1b-3a77-4d52", "0c9d7be4-11f2-4a0e"):
        with recorder_of(tmp_path, TRAINYARD_JOB_UID=uid) as ours:
            assert ours.variables[FILE_VARIABLES[0]] == f"{tmp_path}/flight-recorder-job-{uid[:8]}/1/rank_"


def refusal(folder: Path) -> str:
    """What the agent logs of a folder that it does not use."""
    lines: list[str] = []
    with Recorder({FOLDER_VARIABLE: str(folder)}, place(WORKER_VARIABLES), lines.append) as ours:
        assert FILE_VARIABLES[0] not in ours.variables
    (line,) = lines
    return line


@pytest.mark.parametrize("link", ["flight-recorder-job", "flight-recorder-job/1"])
def test_links_to_other_folders_are_not_followed(tmp_path: Path, link: str) -> None:
    """On a volume that namespaces share, a neighbour may put a link in the place of a folder."""
    victim, shared = tmp_path / "victim", tmp_path / "shared"
    for step in (100, 200, 300, 400, 500):
        (victim / str(step)).mkdir(parents=True)
        (victim / str(step) / "weights").write_text("1")
    victim.chmod(0o700)
    (shared / link).parent.mkdir(parents=True)
    (shared / link).symlink_to(victim)
    assert refusal(shared).startswith(f"cannot keep the flight recorder in {shared}, which")
    assert victim.stat().st_mode & 0o7777 == 0o700
    assert sorted(each.name for each in victim.iterdir()) == ["100", "200", "300", "400", "500"]


def test_only_recorder_files_are_removed(tmp_path: Path) -> None:
    job = tmp_path / "flight-recorder-job"
    for attempt in (1, 2, 3, 4, 5):
        (job / str(attempt)).mkdir(parents=True)
        (job / str(attempt) / "rank_0").write_text("trace")
    (job / "1" / "weights").write_text("1")
    for attempt in (1, 2, 3, 4, 5):
        os.utime(job / str(attempt), ns=(attempt, attempt))
    with recorder_of(tmp_path, 6):
        assert sorted(each.name for each in job.iterdir()) == ["1", "4", "5", "6"]
        assert [each.name for each in (job / "1").iterdir()] == ["weights"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make a folder of another user")
def test_folder_of_another_user_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "flight-recorder-job").mkdir()
    os.chown(tmp_path / "flight-recorder-job", 12345, 12345)
    assert refusal(tmp_path).endswith("flight-recorder-job belongs to user 12345")


def test_user_of_a_file_server_is_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "flight-recorder-job").mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with recorder_of(tmp_path) as ours:
        assert FILE_VARIABLES[0] in ours.variables
