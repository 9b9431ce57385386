"""The job of `helm test`: it trains, reports errors, and has a valid manifest."""

import json
import os
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from trainyard.api.spec import TrainingJobSpec
from trainyard.helm_test import HEARTBEAT_FILE_VARIABLE, alive, worker
from trainyard.helm_test.__main__ import follow, manifest


def test_two_workers_fit_the_line_and_agree() -> None:
    ends = socket.socketpair()
    losses: dict[int, float] = {}
    reported: list[int] = []

    def run(rank: int) -> None:
        def report(step: int, **_: object) -> None:
            if rank == 0:
                reported.append(step)

        losses[rank] = worker.train(rank, ends[rank], report, pause=0)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    for end in ends:
        end.close()
    assert losses[0] == losses[1] < 0.01
    assert reported == [*range(1, worker.STEPS + 1)]


def test_worker_that_loses_its_peer_reports_it() -> None:
    one, other = socket.socketpair()
    with one:
        other.close()
        with pytest.raises(OSError, match=r"disconnected|Broken pipe|reset"):
            worker.mean(one, 1.0)


def test_test_program_requires_two_workers(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "3")):
        monkeypatch.setenv(name, value)
    assert worker.main() == 93
    assert "WORLD_SIZE is 3" in capsys.readouterr().err


def test_the_manifest_is_valid() -> None:
    made = manifest("helm-test-1", "example.org/operator:1", "IfNotPresent", ["mirror"])
    spec = TrainingJobSpec.model_validate(json.loads(json.dumps(made["spec"])))
    assert (spec.replicas, spec.lifecycle.active_deadline_seconds) == (2, 300)
    assert spec.template["spec"]["imagePullSecrets"] == [{"name": "mirror"}]


@pytest.mark.parametrize(
    ("statuses", "code", "expected"),
    [
        ([{}, {"phase": "Running", "ready": "2/2", "progress": {"step": 5}}, {"phase": "Complete"}], 0, "Running, 2/2 ready, step 5"),
        ([{"phase": "Failed", "lastFailure": {"reason": "Error", "message": "boom"}}], 1, "lastFailure: Error: boom"),
        ([{"phase": "Failed", "conditions": [{"type": "Failed", "status": "True", "reason": "RestartsExhausted"}]}], 1, "Failed=True (RestartsExhausted)"),
    ],
)  # fmt: skip
def test_follow_returns_the_result(statuses: list[dict[str, Any]], code: int, expected: str) -> None:
    lines: list[str] = []
    rest = iter(statuses)
    assert follow(lambda: next(rest), lines.append, pause=0) == code
    assert expected in "\n".join(lines)


def test_job_without_controller_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainyard.helm_test.__main__.JOB_TIMEOUT_SECONDS", -30.0)
    lines: list[str] = []
    assert follow(dict, lines.append, pause=0) == 1
    assert "check that the operator is ready and watches this namespace" in lines[-1]


def test_unresponsive_api_server_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    heartbeat = tmp_path / "answered"
    environ = {HEARTBEAT_FILE_VARIABLE: str(heartbeat)}
    assert alive.main(environ) == 1
    assert "has not responded yet" in capsys.readouterr().err
    heartbeat.touch()
    assert alive.main(environ) == 0
    earlier = time.time() - alive.MAX_SILENCE_SECONDS - 30
    os.utime(heartbeat, (earlier, earlier))
    assert alive.main(environ) == 1
    assert "has not responded for 90 s" in capsys.readouterr().err
