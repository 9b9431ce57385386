"""Ranks that are watched: what the agent, Prometheus and the user who requests a profile receive."""

import http.client
import json
import math
import multiprocessing
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.library.support.processes import HERE
from trainyard_agent import report
from trainyard_torch.monitoring.monitor import Monitor
from trainyard_torch.monitoring.profiler import ProfilerConfig


@pytest.fixture(autouse=True)
def no_listener(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in (
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        report.FILE_VARIABLE,
        report.DIR_VARIABLE,
        "TRAINYARD_METRICS_PORT",
    ):
        monkeypatch.delenv(name, raising=False)
    before = signal.getsignal(signal.SIGUSR2)
    yield
    signal.signal(signal.SIGUSR2, before)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def scraped(port: int) -> dict[str, float]:
    from prometheus_client.parser import text_string_to_metric_families  # noqa: PLC0415 - may be missing

    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    return {
        f"{sample.name.removeprefix('trainyard_training_')}{sorted(sample.labels.values())}": sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def watched(rank: int, port: int, group: str, talk: Connection) -> None:
    """A rank that has done four steps, and lives until it is asked to exit."""
    os.environ.update(
        RANK=str(rank), WORLD_SIZE="3", LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE="3", TORCHELASTIC_RUN_ID=group,
        TRAINYARD_METRICS_PORT=str(port),
    )  # fmt: skip
    with Monitor(device="cpu") as monitor:
        for step in range(4):
            # Others see a reading a second old: here none is as old.
            monitor._publish_at = 0.0
            with monitor.phase("data"):
                time.sleep(0.01)
            samples: Any = np.int64(10 + rank)  # as data loaders give it
            monitor.step(step, samples=samples, loss=torch.tensor(float(rank)), grad_norm=torch.tensor([2.0]))
        talk.send("done")
        talk.recv()


def test_prometheus_receives_all_live_ranks(tmp_path: Path) -> None:
    pytest.importorskip("prometheus_client")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch.distributed", HERE])
    port, talks, ranks = free_port(), [], []
    try:
        for rank in range(3):
            here, there = context.Pipe()
            process = context.Process(target=watched, args=(rank, port, str(tmp_path), there), daemon=True)
            process.start()
            ranks.append(process)
            talks.append(here)
        for talk in talks:
            assert talk.poll(60)
            assert talk.recv() == "done"
        every = scraped(port)
        assert {every[f"step['{rank}']"] for rank in range(3)} == {3}
        assert [every[f"samples_total['{rank}']"] for rank in range(3)] == [40, 44, 48]
        assert (every["loss[]"], every["gradient_norm[]"], every["ranks[]"]) == (1, 2, 3)
        assert every["phase_seconds_total['1', 'data']"] >= 0.03
        assert every["host_memory_bytes['2']"] > 1e7
        pid = ranks[2].pid
        assert pid
        os.kill(pid, signal.SIGSTOP)
        assert scraped(port) == every, "a rank that hangs has not gone"
        ranks[2].kill()
        ranks[2].join()
        without = scraped(port)
        assert without["ranks[]"] == 2
        assert not [name for name in without if "'2'" in name]
        talks[1].send("end")
        ranks[1].join(60)
        assert scraped(port)["ranks[]"] == 1
    finally:
        for process in ranks:
            process.kill()
            process.join()


def test_progress_is_reported_to_the_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "progress")
    monkeypatch.setenv(report.FILE_VARIABLE, path)

    def message() -> report.RankState:
        found = report.read(path)
        assert found
        return found

    with Monitor(total_steps=90, device="cpu") as monitor:
        for step in (7, 8):
            with monitor.phase("data"):
                time.sleep(0.02)
            with monitor.phase("backward"):
                time.sleep(0.2)
            monitor.step(step, samples=8, loss=torch.tensor(0.5), grad_norm=2.0)
        assert message()._replace(pid=None, seconds=None, compute_seconds=None, measured={}) == report.RankState(
            8, "train", 90, 0.5, first=7
        )
        own = message().compute_seconds
        assert own
        assert 0.02 <= own < 0.2, "what others take is not in it"
        assert message().measured["grad_norm"] == 2, "told with the first step, and then once a second"
        time.sleep(1)
        monitor.step(9, samples=8)
        measured = message().measured
        assert 8 < measured["samples_per_second"] < 40
        assert 0 < measured["data_share"] < 0.2
        assert measured["memory_bytes"] > 1e6
        for phase in ("checkpoint", "evaluate", "compile"):
            with monitor.phase(phase), monitor.phase("data"):
                assert message().phase == phase
            assert message().phase == "train"


def test_newest_checkpoint_is_reported_with_next_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "progress")
    monkeypatch.setenv(report.FILE_VARIABLE, path)
    with Monitor(device="cpu") as monitor:
        step: Any = np.int64(100)  # as data loaders give it
        monitor.record_checkpoint(step, 4.5)
        monitor.step(101)
        assert monitor.snapshot().checkpoint_time == pytest.approx(time.time(), abs=30)
        found = report.read(path)
        assert found
        assert (found.measured["checkpoint_step"], found.measured["checkpoint_seconds"]) == (100, 4.5)
        for step, seconds in ((-1, 1.0), (1, -1.0), (1, math.nan), (1, math.inf)):
            with pytest.raises(ValueError, match="must be from 0 on"):
                monitor.record_checkpoint(step, seconds)


@pytest.mark.parametrize("names", [None, ("mfu", "memory_bytes")])
def test_older_agent_receives_only_fields_it_knows(
    monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...] | None
) -> None:
    received: list[Mapping[str, float] | None] = []

    def progress(*_: object, measured: Mapping[str, float] | None = None, **__: object) -> None:
        received.append(measured)

    older = SimpleNamespace(progress=progress, **({} if names is None else {"MEASURED": names}))
    monkeypatch.setattr("trainyard_torch.monitoring.monitor.agent", lambda: older)
    with Monitor(device="cpu") as monitor:
        monitor.record_checkpoint(100, 4.5)
        monitor.step(101, grad_norm=1.0)
    assert [set(each or ()) for each in received] == [set() if names is None else {"memory_bytes"}]


def test_nothing_is_written_without_agent_and_port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with Monitor(device="cpu") as monitor:
        monitor.step(0)
        reading = monitor.snapshot()
    assert (reading.steps, reading.loss, reading.mfu, reading.compute_seconds) == (1, None, None, None)
    assert [*tmp_path.iterdir()] == []


def test_non_finite_loss_is_reported_once_per_episode(caplog: pytest.LogCaptureFixture) -> None:
    nan, inf = float("nan"), float("inf")
    with Monitor(device="cpu", profiler=ProfilerConfig(signal=False)) as monitor:
        for step, loss in enumerate((0.5, nan, nan, 0.4, torch.tensor(inf))):
            monitor.step(step, loss=loss, grad_norm=inf)
    message = [record.getMessage() for record in caplog.records]
    assert [text.split(": resume")[0] for text in message] == [
        "step 1: the loss is nan",
        "step 4: the loss is inf",
    ]


def test_a_step_costs_microseconds() -> None:
    """About ten on an idle core. Processor time, at its best: other tests may have the other half of the core."""
    monitor = Monitor(device="cpu", profiler=ProfilerConfig(signal=False))
    costs = []
    for _ in range(20):
        began = time.thread_time()
        for step in range(100):
            for phase in ("data", "forward", "backward", "optimizer"):
                with monitor.phase(phase):
                    pass
            monitor.step(step, samples=1, tokens=1, loss=1.0, grad_norm=1.0)
        costs.append((time.thread_time() - began) / 100)
    assert min(costs) < 50e-6


def test_the_share_of_the_peak(caplog: pytest.LogCaptureFixture) -> None:
    monitor = Monitor(device="cpu", peak_flops=1e9)
    monitor.set_flops(1e6)
    for step in range(4):
        time.sleep(0.01)
        monitor.step(step)
    reading = monitor.snapshot()
    assert reading.steps_per_second
    assert reading.mfu == pytest.approx(1e6 * reading.steps_per_second / 1e9)
    unknown = Monitor(device="cpu", profiler=ProfilerConfig(signal=False))
    unknown.set_flops(1e6)
    unknown.step(0)
    unknown.step(1)
    assert unknown.snapshot().mfu is None
    unknown.computes_in("fp32")
    given = Monitor(device="cpu", profiler=ProfilerConfig(signal=False))
    given.set_flops(1e6, "fp8")
    given.computes_in("tf32")
    assert [message.split()[5] for message in caplog.messages if "the peak in" in message] == ["bf16", "fp32", "fp8"]
    assert [
        message for message in caplog.messages if "the peak in bf16 of a device named 'CPU' is not known" in message
    ]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            lambda: Monitor(compute_phases=("data", "loading")),
            "compute_phases must be of the phases .*, and has loading",
        ),
        (lambda: Monitor(peak_flops=0), "peak_flops must be positive, not 0"),
        (lambda: Monitor(peak_flops=float("inf")), "peak_flops must be positive, not inf"),
        (lambda: Monitor(total_steps=-1), "total_steps must be from 0 on, not -1"),
        (lambda: Monitor(gemm_interval_seconds=5), "gemm_interval_seconds must be 0 or from 10 on, not 5"),
        (lambda: Monitor(port=0), "port must be from 1 to 65535, got 0"),
        (lambda: Monitor(profiler=ProfilerConfig(steps=0)), "steps must be from 1 to 1000, got 0"),
        (lambda: Monitor(profiler=ProfilerConfig(sample_every=5)), "sample_every must be 0 or from 10 on, got 5"),
        (lambda: Monitor().set_flops(0), "flops must be positive"),
        (lambda: Monitor().step(-1), "step must be from 0 on, got -1"),
        (lambda: Monitor().step(0, samples=-1), "samples and tokens must be from 0 on"),
        (lambda: Monitor().step(0, loss=torch.zeros(2)), r"loss must be one number, got a tensor of shape \(2,\)"),
        (lambda: Monitor().phase("loading").__enter__(), "phase must be one of"),
    ],
)
def test_values_that_make_no_sense(wrong: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        wrong()


def test_a_launcher_that_says_nonsense(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "first")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="RANK must be a non-negative integer, not 'first'"):
        Monitor()


def test_a_phase_that_fails_ends_all_the_same() -> None:
    monitor = Monitor(device="cpu")
    with pytest.raises(json.JSONDecodeError), monitor.phase("evaluate"):
        json.loads("{")
    with monitor.phase("data"):
        time.sleep(0.01)
    monitor.step(0)
    assert monitor.snapshot().phases["data"] >= 0.01


def test_the_example_of_the_page_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[2] / "docs/training/monitoring.md").read_text()
    program = page.split("```python\n")[1].split("```")[0].replace("/tmp/model.pt", str(tmp_path / "model.pt"))  # noqa: S108 - the page's
    exec(compile(program, "monitoring.md", "exec"), {})  # noqa: S102 - our own
    message = capsys.readouterr().out
    assert "RankMetrics(rank=0, step=199," in message
    assert "'checkpoint'" in message
