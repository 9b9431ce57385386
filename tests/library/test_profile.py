"""Profiles that are asked for while a training runs."""

import gzip
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.library.support.processes import run
from trainyard_torch.monitoring.communication import Communication
from trainyard_torch.monitoring.monitor import Monitor
from trainyard_torch.monitoring.profiler import NsightWindow, Profiler, ProfilerConfig


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    before = signal.signal(signal.SIGUSR2, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGUSR2, before)


def trained(monitor: Monitor, steps: range) -> None:
    model = torch.nn.Linear(8, 8)
    for step in steps:
        with monitor.phase("forward"):
            loss = model(torch.ones(4, 8)).sum()
        with monitor.phase("backward"):
            loss.backward()
        monitor.step(step)


def written(monitor: Monitor) -> None:
    """The profile that has been made is a file."""
    writer = monitor._profiler._writer
    assert writer
    writer.join(30)
    assert not writer.is_alive()


def marks(path: Path) -> list[str]:
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    return [event["name"] for event in events if event.get("cat") == "user_annotation"]


def test_each_signal_profiles_the_next_steps(tmp_path: Path) -> None:
    monitor = Monitor(device="cpu", profiler=ProfilerConfig(folder=tmp_path / "traces", steps=2))
    trained(monitor, range(3))
    assert not (tmp_path / "traces").exists()
    for begin in (3, 10):
        os.kill(os.getpid(), signal.SIGUSR2)
        trained(monitor, range(begin, begin + 4))
        written(monitor)
    monitor.close()
    assert sorted(each.name for each in (tmp_path / "traces").iterdir()) == [
        "trace-rank0-step10.json.gz",
        "trace-rank0-step3.json.gz",
    ]
    for trace in (tmp_path / "traces").iterdir():
        found = marks(trace)
        assert sum(name.startswith("ProfilerStep") for name in found) == 2
        assert [name for name in found if name.startswith("trainyard::")] == [
            "trainyard::forward",
            "trainyard::backward",
        ] * 2


def test_what_is_asked_for_meanwhile_comes_next(tmp_path: Path) -> None:
    monitor = Monitor(device="cpu", profiler=ProfilerConfig(folder=tmp_path, steps=1))
    for step in range(8):
        if step < 2:
            os.kill(os.getpid(), signal.SIGUSR2)
        trained(monitor, range(step, step + 1))
        if monitor._profiler._writer:
            monitor._profiler._writer.join(30)
    monitor.close()
    assert sorted(each.name for each in tmp_path.iterdir()) == [
        "trace-rank0-step0.json.gz",
        "trace-rank0-step3.json.gz",
    ]


def test_a_file_asks_some_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINYARD_PROFILE_FILE", str(tmp_path / "annotation"))
    monkeypatch.setenv("TRAINYARD_PROFILE_FOLDER", str(tmp_path / "traces"))
    for rank in (0, 3):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "4")
        monitor = Monitor(device="cpu")
        (tmp_path / "annotation").write_text(f"steps=1 ranks=3 id={rank}")
        monitor._profiler._requests._looked -= 1
        trained(monitor, range(20, 24))
        monitor.close()
    assert [each.name for each in (tmp_path / "traces").iterdir()] == ["trace-rank3-step20.json.gz"]


def test_a_full_disk_ends_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    monitor = Monitor(device="cpu", profiler=ProfilerConfig(folder=tmp_path))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        os.kill(os.getpid(), signal.SIGUSR2)
        trained(monitor, range(6))
        written(monitor)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    trained(monitor, range(6, 8))
    monitor.close()
    assert "is there space left in" in caplog.text
    assert [*tmp_path.iterdir()] == []


def test_a_profile_of_the_programs_own_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    monitor = Monitor(device="cpu", profiler=ProfilerConfig(folder=tmp_path))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as own:
        os.kill(os.getpid(), signal.SIGUSR2)
        trained(monitor, range(6))
    monitor.close()
    assert [event for event in own.events() if event.name == "aten::linear"]
    assert "no profile of rank 0 after step 0: the program makes a profile of its own" in caplog.text
    assert [*tmp_path.iterdir()] == []


def test_a_training_that_ends_before_its_profile(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        monitor = Monitor(device="cpu", profiler=ProfilerConfig(folder=tmp_path, steps=50))
        os.kill(os.getpid(), signal.SIGUSR2)
        trained(monitor, range(3))
        monitor.close()
        signal.signal(signal.SIGUSR2, signal.SIG_DFL)
    assert caplog.text.count("the training has ended before it was complete") == 2
    assert [*tmp_path.iterdir()] == []


RANK = """
import sys, time
from pathlib import Path
from trainyard_torch.monitoring.profiler import ProfilerConfig
from trainyard_torch.monitoring.monitor import Monitor
folder, end = Path(sys.argv[1]), time.monotonic() + 60
with Monitor(device="cpu", profiler=ProfilerConfig(folder=folder)) as monitor:
    (folder / f"ready-{monitor.snapshot().rank}").touch()
    step = 0
    while len([*folder.glob("trace-*")]) < 2 and time.monotonic() < end:
        time.sleep(0.01)
        step += 1
        monitor.step(step)
"""


def test_signal_to_the_agent_reaches_all_ranks(tmp_path: Path) -> None:
    (tmp_path / "rank.py").write_text(RANK)
    agent = Path(__file__).parents[2] / "trainer-image/agent"
    worker = {
        "TRAINYARD_REPLICAS": "1",
        "TRAINYARD_REPLICA_INDEX": "0",
        "TRAINYARD_PROCESSES_PER_REPLICA": "2",
        "TRAINYARD_ATTEMPT": "1",
    }
    process = subprocess.Popen(
        [sys.executable, str(agent), "--", sys.executable, str(tmp_path / "rank.py"), str(tmp_path)],
        env={**os.environ, **worker, "TRAINYARD_WARM_START": "0", "TRAINYARD_TERMINATION_LOG": str(tmp_path / "why")},
    )
    try:
        until = time.monotonic() + 60
        while len([*tmp_path.glob("ready-*")]) < 2:
            assert time.monotonic() < until
            time.sleep(0.1)
        process.send_signal(signal.SIGUSR2)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
    assert sorted(each.name[:11] for each in tmp_path.glob("trace-*")) == ["trace-rank0", "trace-rank1"]


def one_that_waits(seconds: float) -> tuple[Communication | None, float | None]:
    """A rank of two that exchanges gradients; rank 1 comes late to each exchange."""
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
    monitor = Monitor(device="cpu", profiler=ProfilerConfig(signal=False, sample_every=10))
    # Several samples: of one, torch may lose the collective.
    for step in range(45):
        if dist.get_rank() == 1:
            time.sleep(seconds)
        model(torch.ones(4, 64)).sum().backward()
        monitor.step(step)
    monitor.close()
    return monitor._profiler.communication, monitor.snapshot().exposed_communication


def test_share_of_waiting_for_ranks_is_seen(tmp_path: Path) -> None:
    (waits, reported), (late, _) = run(2, tmp_path, one_that_waits, 0.1)
    assert waits
    assert late
    # How much the late one waits itself is a matter of how busy the machine is.
    assert waits.exposed > 0.5
    assert waits.exposed > late.exposed + 0.2
    assert waits.ratio >= waits.exposed == reported


def test_training_process_builds_no_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A million of them would take its interpreter for tens of seconds."""

    def build(_: object) -> None:
        raise AssertionError("built")

    monkeypatch.setattr(torch.autograd.profiler.profile, "_ensure_function_events", build)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with Monitor(
        device="cpu", profiler=ProfilerConfig(signal=False, folder=tmp_path / "traces", sample_every=10)
    ) as one:
        trained(one, range(9, 14))
    assert one.snapshot().communication == 0
    assert caplog.messages == []
    assert [*tmp_path.iterdir()] == [], "a sample leaves no file"


class Device:
    """What torch would tell Nsight Systems."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reported: list[str] = []
        monkeypatch.setattr(torch.cuda.profiler, "start", lambda: self.reported.append("start"))
        monkeypatch.setattr(torch.cuda.profiler, "stop", lambda: self.reported.append("stop"))
        monkeypatch.setattr(torch.cuda.nvtx, "range_push", lambda name, *_: self.reported.append(name))
        monkeypatch.setattr(torch.cuda.nvtx, "range_pop", lambda: self.reported.append("pop"))
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)


def test_under_nsight_only_nsight_profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device(monkeypatch)
    profiler = Profiler(
        ProfilerConfig(folder=tmp_path, steps=2, sample_every=10), 0, {"NSYS_PROFILING_SESSION_ID": "1"}
    )
    assert profiler.marked("data") is None
    os.kill(os.getpid(), signal.SIGUSR2)
    profiler.step(1)
    assert isinstance(profiler._window, NsightWindow)
    marked: Any = profiler.marked("data")
    with marked:
        pass
    for step in range(2, 30):
        profiler.step(step)
    assert device.reported == ["start", "data", "pop", "stop"]
    os.kill(os.getpid(), signal.SIGUSR2)
    profiler.step(30)
    profiler.close()
    assert device.reported[4:] == ["start", "stop"]
    assert [*tmp_path.iterdir()] == []
