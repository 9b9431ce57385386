"""The cached record of a TrainingJob."""

import sys
from typing import Any

from trainyard.api.status import Phase, TrainingJobStatus
from trainyard.controller.reconcile.resources import job_record

RAW: dict[str, Any] = {
    "metadata": {"uid": "1", "resourceVersion": "7", "namespace": "lab", "name": "job", "generation": 2},
    "spec": {"template": {"spec": {"containers": [{"name": "main", "image": "x"}]}}},
    "status": {"attempt": 1},
}


def test_stored_status_equals_the_watched_record() -> None:
    status = TrainingJobStatus().evolve(attempt=3, phase=Phase.RUNNING)
    brought = {**RAW, "metadata": {**RAW["metadata"], "resourceVersion": "9"}, "status": status.dump()}
    assert job_record(RAW).with_status(status, 9) == job_record(brought)


def test_stored_status_repairs_an_unreadable_record() -> None:
    broken = job_record({**RAW, "status": {"attempt": "many"}})
    assert broken.problem
    assert broken.view is None
    healed = broken.with_status(TrainingJobStatus(), 8)
    assert (healed.problem, healed.resource_version) == ("", 8)
    assert healed.view is not None


def test_record_keeps_no_spare_memory() -> None:
    assert sys.getsizeof(job_record(RAW).text) < 500
