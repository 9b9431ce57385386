"""A training begins and ends: alone, with others, when it is asked to, and when it fails."""

import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from tests.library.support.programs import started
from trainyard_agent.hang import ALLOWANCES
from trainyard_torch import CheckpointSaveError, NoUsableCheckpointError, Parallelism, context, start
from trainyard_torch.checkpoint.timeouts import NoResponseError
from trainyard_torch.sigterm import SigtermHandler


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "TRAINYARD_PARALLELISM", "TRAINYARD_ATTEMPT", "TRAINYARD_GRACE_PERIOD_SECONDS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("TRAINYARD_ACCELERATORS_PER_REPLICA", raising=False)


def test_one_process_by_itself() -> None:
    with start(seed=7) as training:
        reported = torch.ones(1)
        dist.all_reduce(reported)
        assert (training.process.world_size, training.is_rank0, str(training.device), float(reported)) == (
            1,
            True,
            "cpu",
            1.0,
        )
        assert (training.data_shard.rank, training.data_shard.world_size, training.mesh["tensor"].size()) == (0, 1, 1)
        assert not training.must_stop(1)
        training.progress(1)
    assert not dist.is_initialized()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_random_draws_depend_on_seed_and_step() -> None:
    def drawn(seed: int, step: int | None) -> tuple[float, float, float]:
        with start(seed=seed) as training:
            if step is not None:
                torch.rand(step)
                training.reseed(step)
            return float(torch.rand(1)), float(np.random.rand()), random.random()  # noqa: NPY002, S311 - that is it

    assert drawn(1, 5) == drawn(1, 5)
    assert drawn(1, None) == drawn(1, None)
    different = [drawn(1, 5), drawn(1, 6), drawn(2, 5), drawn(1, None)]
    assert len({number for numbers in different for number in numbers}) == 12


@pytest.mark.parametrize(
    ("environ", "more", "message"),
    [
        ({}, {"seed": -1}, "seed must be from 0"),
        ({}, {"device": "tpu"}, "device must be"),
        ({}, {"device": "cuda"}, "1 processes in this pod and 0 GPUs"),
        ({}, {"parallelism": Parallelism(tensor=2)}, "1 processes cannot be laid out"),
        ({"TRAINYARD_PARALLELISM": '{"tensor": 3}'}, {}, "1 processes cannot be laid out as tensor 3"),
        ({"RANK": "0"}, {}, "RANK is set without WORLD_SIZE"),
        (
            {},
            {"stop_timeout_seconds": 0},
            "stop_timeout_seconds must be a positive number of seconds up to 1000000000, not 0",
        ),
        ({}, {"stop_timeout_seconds": float("inf")}, "stop_timeout_seconds must be a positive number"),
        (
            {"TRAINYARD_GRACE_PERIOD_SECONDS": "soon"},
            {},
            "TRAINYARD_GRACE_PERIOD_SECONDS must be the seconds that the pod gets",
        ),
    ],
)
def test_mismatch_is_reported_before_setup(
    monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], more: dict[str, str], message: str
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=message), start(**more):  # type: ignore[arg-type]  # wrong ones too
        pass
    assert not dist.is_initialized()


def test_the_agent_receives_reports_and_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    reported: list[object] = []
    agent = SimpleNamespace(
        progress=lambda step, **more: reported.append((step, more["loss"])), must_stop=lambda step: step == 2
    )
    monkeypatch.setattr(context, "agent", lambda: agent)
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "TRAINYARD_PROGRESS_FILE": "/x", "MASTER_PORT": "0"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    with start() as training:
        training.progress(1, loss=0.5)
        assert [training.must_stop(step) for step in (1, 2)] == [False, True]
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, "SIGTERM is the agent's"
    assert reported == [(1, 0.5)]


@contextmanager
def exit_of(code: int) -> Iterator[None]:
    with pytest.raises(SystemExit) as raised:
        yield
    assert raised.value.code == code


def test_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    with exit_of(95), start():
        raise NoUsableCheckpointError("all are broken")
    assert not dist.is_initialized(), "gloo aborts a process that goes with groups of its own"
    assert "NoUsableCheckpointError: all are broken" in capsys.readouterr().err
    with exit_of(90), start() as training:
        training.exit()
    assert not dist.is_initialized()
    with pytest.raises(KeyError), start():
        raise KeyError("its own")
    assert not dist.is_initialized()


@pytest.mark.parametrize(
    ("built_for", "code", "text"),
    [
        ("12.4", 94, "AcceleratorLostError: torch sees 0 GPUs, and this container requested 8 for 1 processes"),
        (None, 93, "NoGpuSupportError: this container requested 8 accelerators, and this torch is built without GPU"),
    ],
)
def test_no_process_trains_on_the_cpu_in_silence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], built_for: str | None, code: int, text: str
) -> None:
    monkeypatch.setenv("TRAINYARD_ACCELERATORS_PER_REPLICA", "8")
    monkeypatch.setattr(torch.version, "cuda", built_for)
    with exit_of(code), start():
        pass
    assert not dist.is_initialized()
    assert text in capsys.readouterr().err
    with start(device="cpu") as training:
        assert training.device.type == "cpu"


def group_timeouts(monkeypatch: pytest.MonkeyPatch, **environ: str) -> set[timedelta]:
    """The timeouts of all groups at the start of a training."""
    launched = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    for name, value in {**launched, **environ}.items():
        monkeypatch.setenv(name, value)
    mesh = Parallelism.mesh

    def mesh_with_group(sizes: Parallelism, *words: Any) -> Any:
        # A mesh of several processes creates groups, too.
        dist.new_group()
        return mesh(sizes, *words)

    with monkeypatch.context() as patched:
        patched.setattr(Parallelism, "mesh", mesh_with_group)
        return timeouts_at_start()


def timeouts_at_start() -> set[timedelta]:
    with start():
        groups = list(dist.distributed_c10d._world.pg_map)
        assert len(groups) > 1, "groups that were made after the first"
        backends = [group._get_backend(torch.device("cpu")) for group in groups]
        return {each.options._timeout for each in backends}


def test_collectives_outlast_the_longest_allowance_below_the_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = group_timeouts(monkeypatch)
    below = {"TRAINYARD_PROGRESS_FILE": "/x"}
    allowance = timedelta(seconds=max(ALLOWANCES.values()))
    assert usual == {timedelta(minutes=30)}, "torch's own, which this test relies on for gloo"
    assert min(group_timeouts(monkeypatch, **below)) > allowance
    assert min(group_timeouts(monkeypatch, **below, TRAINYARD_HANG_TIMEOUT_SECONDS="7200")) > timedelta(seconds=7200)
    assert group_timeouts(monkeypatch, **below, TRAINYARD_HANG_TIMEOUT_SECONDS="0") == usual, "no hang detection"
    monkeypatch.delenv("TRAINYARD_PROGRESS_FILE")
    monkeypatch.delenv("TRAINYARD_HANG_TIMEOUT_SECONDS")
    assert min(group_timeouts(monkeypatch, TRAINYARD_PROGRESS_DIR="/x")) > allowance, "below a launcher"


def test_failure_on_a_gpu_exits_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[Exception] = []
    monkeypatch.setattr(context, "exit_soon_after", ended.append)
    with pytest.raises(KeyError), start():
        raise KeyError("on a CPU")
    assert ended == []
    monkeypatch.setattr(context, "_device", lambda *_: SimpleNamespace(type="cuda"))
    monkeypatch.setattr(context, "_join", lambda *_: None)
    monkeypatch.setattr(context, "Training", lambda *_: 1 / 0)
    monkeypatch.setattr(Parallelism, "mesh", lambda *_: None)
    with pytest.raises(ZeroDivisionError) as raised, start():
        pass
    assert ended == [raised.value]


def test_training_that_is_done_outlasts_a_blocked_group(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    released = threading.Event()
    monkeypatch.setattr(context, "DESTROY_AFTER_TRAINING_SECONDS", 0.1)
    monkeypatch.setattr(context, "destroy", lambda: released.wait(30))
    with start():
        pass
    assert "the process groups were not released within 0 seconds; training is done" in caplog.text
    released.set()
    dist.destroy_process_group()


def test_unfinished_groups_do_not_delay_exit(monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[int] = []

    def silent(*_: object) -> None:
        raise NoResponseError

    monkeypatch.setattr(context, "run_with_timeout", silent)
    monkeypatch.setattr("logging.shutdown", lambda: None)
    monkeypatch.setattr(os, "_exit", left.append)
    with exit_of(97), start():
        raise CheckpointSaveError("the last one")
    assert left == [97]
    dist.destroy_process_group()


def test_of_another_thread_no_handler_is_made() -> None:
    answers: list[bool] = []

    def act() -> None:
        with start() as training:
            answers.extend(training.must_stop(step) for step in (1, 2))

    thread = threading.Thread(target=act)
    thread.start()
    thread.join()
    assert answers == [False, False]


PROGRAM = """
import os, sys, time
from trainyard_torch import start
with start() as training:
    for step in range(1, 100000):
        time.sleep(0.01)
        if step == 5: print("five", flush=True)
        if training.must_stop(step):
            print("saved", step, flush=True)
            training.exit()
"""


@pytest.mark.parametrize("code", [0, 3])
def test_exit_code_of_the_program_is_kept(tmp_path: Path, code: int) -> None:
    """With groups that it still had, gloo would abort one process or the other."""
    (tmp_path / "program.py").write_text(
        f"import sys, torch, torch.distributed as dist\nfrom trainyard_torch import start\n"
        f"with start():\n    dist.all_reduce(torch.ones(1))\n    sys.exit({code})\n"
    )
    with started(tmp_path / "program.py", 2) as ranks:
        assert [each.wait(60) for each in ranks] == [code, code]


def test_sigterm_to_one_stops_all_at_one_step(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    with started(tmp_path / "program.py", 2) as (one, other):
        for each in (one, other):
            assert each.stdout
            assert each.stdout.readline() == "five\n"
        other.terminate()
        first, second = one.communicate(timeout=60), other.communicate(timeout=60)
        assert (one.returncode, other.returncode) == (90, 90), first[1] + second[1]
    assert first[0].startswith("saved ")
    assert first[0] == second[0]


@pytest.mark.parametrize(
    ("grace", "more", "seconds"), [(None, {}, 20.0), ("600", {}, 400.0), ("600", {"stop_timeout_seconds": 7}, 7)]
)
def test_step_may_take_the_pods_grace_period(
    monkeypatch: pytest.MonkeyPatch, grace: str | None, more: dict[str, float], seconds: float
) -> None:
    given: list[float] = []

    def handler(seconds: float) -> SigtermHandler:
        given.append(seconds)
        return SigtermHandler(seconds)

    monkeypatch.setattr(context, "SigtermHandler", handler)
    if grace:
        monkeypatch.setenv("TRAINYARD_GRACE_PERIOD_SECONDS", grace)
    with start(**more):  # type: ignore[arg-type]  # one parameter of them
        pass
    assert given == [pytest.approx(seconds)]


STUCK = """
import threading
from trainyard_torch.sigterm import SigtermHandler
SigtermHandler(stop_timeout_seconds=0.5)
print("up", flush=True)
threading.Event().wait()
"""


def test_who_is_stuck_ends_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(STUCK)
    with started(tmp_path / "program.py", 1) as (one,):
        assert one.stdout
        assert one.stdout.readline() == "up\n"
        began = time.monotonic()
        one.terminate()
        assert one.wait(timeout=60) == 143
        assert time.monotonic() - began > 0.4


def test_a_notice_gives_back_what_it_took() -> None:
    usual = signal.getsignal(signal.SIGTERM)
    notice = SigtermHandler(stop_timeout_seconds=0.2)
    os.kill(os.getpid(), signal.SIGTERM)
    assert notice.received
    notice.acknowledge()
    notice.close()
    time.sleep(0.5)
    assert signal.getsignal(signal.SIGTERM) is usual
    assert signal.set_wakeup_fd(-1) == -1


FORKS = """
import os, signal, time
from trainyard_torch.sigterm import SigtermHandler
notice = SigtermHandler(stop_timeout_seconds=0.5)
child = os.fork()
if child == 0:
    time.sleep(60)
time.sleep(0.2)
os.kill(child, signal.SIGTERM)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
time.sleep(1.5)
print("alive", notice.received, flush=True)
"""


def test_signal_to_a_forked_process_stops_it_alone(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(FORKS)
    with started(tmp_path / "program.py", 1) as (one,):
        out, errors = one.communicate(timeout=60)
    assert (out, one.returncode) == ("-15\nalive False\n", 0), errors
