"""A training is reported to MLflow and TensorBoard: once, in full, over restarts, and whatever becomes of the server."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from typing_extensions import override

from tests.library.support.processes import run
from tests.library.support.programs import free_port
from tests.library.support.servers import Tracker
from trainyard_torch import (
    Batches,
    CheckpointPolicy,
    Checkpoints,
    Loader,
    Loop,
    Manifest,
    MLflow,
    Monitor,
    SampleOrder,
    SaveInterval,
    TensorBoard,
    Tracking,
    export_model,
    read_record,
    replicate,
    start,
)
from trainyard_torch.export.record import Code, Record
from trainyard_torch.tracking import background, mlflow as ours, tensorboard, tracking as trackings
from trainyard_torch.tracking.aggregation import packed, unpacked
from trainyard_torch.tracking.background import TrackingError

# MLflow and TensorBoard warn of what they use themselves.
pytestmark = pytest.mark.filterwarnings("ignore")
SAMPLES = [(torch.full((3,), float(number)), torch.ones(1)) for number in range(12)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tracker]:
    made = Tracker(tmp_path_factory.mktemp("mlflow"))
    made.start()
    yield made
    made.kill()


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "MLFLOW_TRACKING_URI", "MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    # A machine with much else to do takes its time, and imports take it once.
    for name in ("CLOSE_TIMEOUT_SECONDS", "HASTY_CLOSE_TIMEOUT_SECONDS"):
        monkeypatch.setattr(trackings, name, 60.0)
    monkeypatch.setattr(background, "MAX_RETRY_SECONDS", 0.5)
    # What MLflow sets goes with the test.
    for name, value in ours.CLIENT_DEFAULTS.items():
        monkeypatch.setenv(name, value)


def test_global_loss_counts_each_sample_once() -> None:
    """Of six samples per step one process has four, the other two: its mean counts for less."""
    known = [({"loss": 1.0, "mfu": 0.4, "samples_per_second": 40.0}, 4 / 3), ({"loss": 4.0, "mfu": 0.2}, 2 / 3)]
    sums = [sum(numbers) for numbers in zip(*(packed(*each) for each in known), strict=True)]
    assert unpacked(sums) == pytest.approx({"loss": 2.0, "mfu": 0.3, "samples_per_second": 40.0})
    assert "loss" not in unpacked(packed({"mfu": 0.4}))


class CrashError(Exception):
    pass


def train(
    tracking: Tracking, folder: Path, until: int, *, crash: int | None = None, export: Path | None = None
) -> dict[int, float]:
    """The losses of the steps, by hand beside what is reported; checkpoints after each third step and the last."""
    losses = {}
    with start(seed=1) as training:
        model = replicate(nn.Linear(3, 1), training.mesh)
        data = Loader(
            SAMPLES, Batches(SampleOrder(12, seed=2), 4, micro_batch_size=4), training.data_shard, num_workers=0
        )
        checkpoints = Checkpoints(str(folder), policy=CheckpointPolicy(store=SaveInterval(steps=3)), mesh=training.mesh)
        loop = Loop(
            training,
            model,
            torch.optim.SGD(model.parameters(), lr=1e-4),
            data,
            total_steps=until,
            checkpoints=checkpoints,
            tracking=tracking,
        )
        loss = torch.zeros(())
        for step in loop:
            for inputs, targets in step:
                loss = (model(inputs) - targets).square().mean()
                step.backward(loss)
            losses[step.number] = float(loss.detach())
            if step.number == crash:
                checkpoints.close()
                raise CrashError
        if export:
            export_model(model, str(export), provenance=loop.provenance(configuration={"lr": 1e-4}, source="numbers"))
            assert tracking.register_model("digits", str(export)) == "1"
            assert tracking.register_model("digits", str(export)) == "1", (
                "the same weights of the same run are one version"
            )
    return losses


def history(client: Any, run: str, key: str) -> dict[int, float]:
    """The values by step, each of which is there once."""
    found = client.get_metric_history(run, key)
    assert len({each.step for each in found}) == len(found), f"{key}: a step is there twice"
    return {each.step: each.value for each in sorted(found, key=lambda each: each.step)}


def test_training_resumed_after_failure_is_one_run(
    server: Tracker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow import MlflowClient  # noqa: PLC0415 - takes seconds, and ranks import this file

    monkeypatch.setenv("TRAINYARD_JOB_UID", "uid-of-the-job")
    monkeypatch.setenv("TRAINYARD_JOB_NAME", "digits-1")
    monkeypatch.setenv("TRAINYARD_ATTEMPT", "1")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.url)
    client = MlflowClient(server.url)

    def track(**parameters: Any) -> Tracking:
        return Tracking(MLflow(server.url, experiment="one run"), log_every=1, parameters=parameters)

    with pytest.raises(CrashError):
        train(track(lr=1e-4, model={"width": 3}), tmp_path / "c", 7, crash=5)
    experiment = client.get_experiment_by_name("one run")
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.run_name, run.info.status) == ("digits-1", "FAILED")
    assert run.data.params == {"lr": "0.0001", "model.width": "3"}
    assert max(history(client, run.info.run_id, "loss")) == 4, "the fifth step was not done"

    monkeypatch.setenv("TRAINYARD_ATTEMPT", "2")
    losses = train(track(lr=2e-4, model={"width": 3}), tmp_path / "c", 7, export=tmp_path / "out")
    assert min(losses) == 4
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED"
    assert run.data.params == {"lr": "0.0001", "model.width": "3", "attempt-2/lr": "0.0002"}
    recorded = history(client, run.info.run_id, "loss")
    assert [*recorded] == [1, 2, 3, 4, 5, 6, 7]
    assert {step: recorded[step] for step in losses} == pytest.approx(losses)
    assert history(client, run.info.run_id, "checkpoint_attempt") == {3: 1, 6: 2, 7: 2}
    assert {"samples_per_second", "step_seconds", "share/forward"} <= run.data.metrics.keys()
    tags = {name: value for name, value in run.data.tags.items() if name.startswith("trainyard.dev/")}
    assert tags == {
        "trainyard.dev/job-uid": "uid-of-the-job",
        "trainyard.dev/job-name": "digits-1",
        "trainyard.dev/checkpoints": str(tmp_path / "c"),
        "trainyard.dev/checkpoint": f"{tmp_path / 'c'}/step-000000000007-000002",
        "trainyard.dev/attempt.1": "from the beginning",
        "trainyard.dev/attempt.2": "from step-000000000003-000001",
    }

    (version,) = client.search_model_versions("name = 'digits'")
    record = read_record(str(tmp_path / "out"), verify=True)
    assert record
    assert version.run_id == run.info.run_id
    assert version.tags["trainyard.dev/weights"] == record.weights
    assert version.tags["trainyard.dev/checkpoint"] == record.checkpoint["name"] == "step-000000000007-000002"
    assert record.data == {"source": "numbers", "cursor": 28, **SampleOrder(12, seed=2).identity}
    assert record.environment["job"] == {"name": "digits-1", "uid": "uid-of-the-job", "attempt": 2}
    from mlflow.artifacts import download_artifacts  # noqa: PLC0415

    there = Path(download_artifacts("models:/digits/1", dst_path=str(tmp_path / "down")))
    assert read_record(str(there), verify=True) == record


def steps(monitor: Monitor, numbers: range) -> float:
    """Seconds that it took to be done with these steps."""
    begin = time.monotonic()
    for number in numbers:
        monitor.step(number, samples=2, loss=1 / number)
    return time.monotonic() - begin


def test_a_killed_server_receives_records_later(
    server: Tracker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow import MlflowClient  # noqa: PLC0415

    monkeypatch.setenv("TRAINYARD_JOB_UID", "uid-of-another")
    tracking, monitor = Tracking(MLflow(server.url), log_every=1), Monitor()
    tracking._background._pause = tracking._background._min_retry_seconds = 0.05
    with tracking, caplog.at_level(logging.INFO):
        tracking.start(monitor)
        steps(monitor, range(1, 11))
        assert tracking._background.flush(30)
        server.kill()
        assert steps(monitor, range(11, 31)) < 1.0, "the training does not wait"
        while not any("cannot send events" in message for message in caplog.messages):
            time.sleep(0.01)
        server.start()
        tracking.log_metrics(30, {"accuracy": 0.5, "/not/allowed": 1.0})
        steps(monitor, range(31, 33))
        assert tracking._background.flush(60)
    client = MlflowClient(server.url)
    (run,) = client.search_runs(["0"], "tags.`trainyard.dev/job-uid` = 'uid-of-another'")
    assert [*history(client, run.info.run_id, "loss")] == [*range(1, 33)]
    assert run.info.status == "FINISHED"
    warnings = [message for message in caplog.messages if "MLflow at " in message]
    assert [message.partition(" (")[0] for message in warnings] == [
        f"cannot send events to MLflow at {server.url}",
        f"MLflow at {server.url} answers again; 0 events were dropped",
        f"MLflow at {server.url} rejects some events",
    ]


def test_a_run_that_is_named(server: Tracker, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow import MlflowClient  # noqa: PLC0415

    client = MlflowClient(server.url)
    run = client.create_run("0").info.run_id
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.url)
    trackings = [Tracking(MLflow(run_id=run), log_every=2) for _ in range(2)]
    for first, tracking in zip((1, 4), trackings, strict=True):
        monitor = Monitor()
        with tracking:
            tracking.start(monitor)
            steps(monitor, range(first, first + 4))
    assert [*history(client, run, "loss")] == [2, 4, 6, 7], "each second step and the last; none twice"
    stored, record = "s3://bucket/models/1", Record("Net", 12, "ab" * 32, code=Code("c0ffee", dirty=True))
    assert trackings[-1]._sink.register("stored", stored, record, None) == "1"
    (version,) = client.search_model_versions("name = 'stored'")
    assert version.source == stored, "what the server can reach stays where it is"
    assert version.tags["trainyard.dev/commit"] == "c0ffee-dirty"
    with pytest.raises(TrackingError, match=f"it's was not registered: MLflow at {server.url} answered "):
        tracking._sink.register("it's", stored, record, None)


@pytest.fixture
def slow() -> Iterator[str]:
    """A server that thinks for long about everything."""
    go = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            go.wait(60)

        do_POST = do_GET  # noqa: N815 - that is its name

        @override
        def log_message(self, *_: object) -> None:
            pass

    made = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.daemon_threads = True
    threading.Thread(target=made.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{made.server_address[1]}"
    go.set()
    made.shutdown()
    made.server_close()


@pytest.mark.parametrize("how", ["away", "slow"])
def test_a_training_ends_without_its_server(
    slow: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    monkeypatch.setattr(trackings, "CLOSE_TIMEOUT_SECONDS", 0.5)
    url = f"http://127.0.0.1:{free_port()}" if how == "away" else slow
    tracking = Tracking(MLflow(url, experiment="none"), log_every=1)
    assert len(train(tracking, tmp_path, 6)) == 6
    (left,) = [message for message in caplog.messages if "did not answer at the end" in message]
    assert left == f"MLflow at {url} did not answer at the end: dropped 10 events"
    with pytest.raises(TrackingError, match="there is no export in"):
        tracking.register_model("digits", str(tmp_path / "none"))


def scalars(folder: Path) -> dict[str, dict[int, float]]:
    """What TensorBoard shows, by tag and step, each of which is there once."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # noqa: PLC0415

    found = EventAccumulator(str(folder)).Reload()
    shown = {}
    for tag in found.Tags()["scalars"]:
        values = found.Scalars(tag)
        assert len({each.step for each in values}) == len(values), f"{tag}: a step is there twice"
        shown[tag] = {each.step: each.value for each in values}
    return shown


def test_attempts_in_tensorboard_show_no_step_twice(tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    for found, numbers in ((None, range(1, 7)), (Manifest(3, 1, 1), range(4, 9))):
        tracking, monitor = Tracking(TensorBoard(folder), log_every=1, parameters={"lr": 0.1}), Monitor()
        with tracking:
            tracking.start(monitor, found=found)
            for number in numbers:
                monitor.step(number, samples=2, loss=number + (100 if found else 0))
        # Their files are distinguished, and put in order, by the second.
        time.sleep(1.1 if found is None else 0)
    assert scalars(folder)["loss"] == {1: 1, 2: 2, 3: 3, 4: 104, 5: 105, 6: 106, 7: 107, 8: 108}


def test_a_folder_that_comes_later(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "runs"
    folder.write_text("a file")
    tracking, monitor = Tracking(TensorBoard(folder), log_every=1), Monitor()
    tracking._background._min_retry_seconds = 0.01
    with tracking:
        tracking.start(monitor)
        steps(monitor, range(1, 6))
        while not any("cannot send events" in message for message in caplog.messages):
            time.sleep(0.01)
        folder.unlink()
        assert tracking._background.flush(30)
    assert [*scalars(folder)["loss"]] == [1, 2, 3, 4, 5]
    warnings = [
        message for message in caplog.messages if message.startswith(f"cannot send events to TensorBoard in {folder}")
    ]
    assert len(warnings) == 1, "it is logged once"


def report_from_ranks(folder: Path) -> None:
    tracking, monitor = Tracking(TensorBoard(folder), log_every=2), Monitor()
    rank = dist.get_rank()
    with tracking:
        tracking.start(monitor)
        for number in range(1, 6):
            with monitor.phase("forward"):
                time.sleep(0.005)
            monitor.step(number, samples=10 if rank < 2 else 0, loss=float(rank), grad_norm=2.0)
            dist.barrier()


def test_rank_0_reports_the_numbers_of_all(tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    run(3, tmp_path, report_from_ranks, folder)
    assert len(list(folder.iterdir())) == 1
    shown = scalars(folder)
    assert shown["loss"] == {2: 1.0, 4: 1.0, 5: 1.0}, "the mean of 0, 1 and 2"
    assert shown["grad_norm"] == {2: 2.0, 4: 2.0, 5: 2.0}
    seconds = shown["step_seconds"][5]
    assert shown["samples_per_second"][5] == pytest.approx(20 / seconds, rel=0.5), "ten each of two ranks"
    assert 0 < shown["share/forward"][5] <= 1


@pytest.mark.parametrize(
    ("wrong", "kind", "message"),
    [
        (MLflow, ValueError, "tracking_uri is missing: the server's address"),
        (lambda: TensorBoard("s3://bucket/runs"), ValueError, "log_dir must be a path, not s3://bucket/runs"),
        (lambda: Tracking(TensorBoard("runs"), log_every=0), ValueError, "log_every must be from 1 on, not 0"),
        (lambda: Tracking(TensorBoard("runs"), parameters=3), ValueError, "parameters must be a mapping"),
        (
            lambda: Tracking(TensorBoard("runs")).log_metrics(1, {}),
            RuntimeError,
            r"call start\(\) before log_metrics\(\)",
        ),
    ],
)
def test_what_makes_no_sense(wrong: Callable[[], object], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        wrong()


def test_a_second_beginning() -> None:
    tracking = Tracking(MLflow("http://127.0.0.1:1"))
    tracking._process = tracking._process.__class__(rank=1, world_size=2)
    tracking.start(Monitor())
    with pytest.raises(RuntimeError, match="this Tracking was started already: make one for each loop"):
        tracking.start(Monitor())


@pytest.mark.parametrize(
    ("module", "make", "message"),
    [
        (ours, lambda: MLflow("http://mlflow"), r"pip install mlflow-skinny \(or mlflow\)"),
        (tensorboard, lambda: TensorBoard("runs"), "pip install tensorboard"),
    ],
)
def test_a_package_that_is_missing(
    monkeypatch: pytest.MonkeyPatch, module: Any, make: Callable[[], object], message: str
) -> None:
    monkeypatch.setattr(module, "find_spec", lambda _: None)
    with pytest.raises(ModuleNotFoundError, match=message):
        make()


def test_no_password_in_the_log() -> None:
    assert MLflow("https://user:secret@mlflow.example:5000/x").name == "MLflow at https://mlflow.example:5000"
