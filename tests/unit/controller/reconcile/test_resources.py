"""What the cache keeps of a TrainingJob."""

import sys

from tests.unit.controller.raw_job import RAW
from trainyard.api.status import Phase, TrainingJobStatus
from trainyard.controller.reconcile.resources import job_record


def test_a_stored_status_makes_the_record_that_the_watch_would_bring() -> None:
    status = TrainingJobStatus().evolve(attempt=3, phase=Phase.RUNNING)
    brought = {**RAW, "metadata": {**RAW["metadata"], "resourceVersion": "9"}, "status": status.dump()}
    assert job_record(RAW).with_status(status, 9) == job_record(brought)


def test_a_stored_status_heals_a_record_that_could_not_be_read_for_its_old_one() -> None:
    broken = job_record({**RAW, "status": {"attempt": "many"}})
    assert broken.problem
    assert broken.view is None
    healed = broken.with_status(TrainingJobStatus(), 8)
    assert (healed.problem, healed.resource_version) == ("", 8)
    assert healed.view is not None


def test_a_record_takes_no_more_room_than_its_text() -> None:
    assert sys.getsizeof(job_record(RAW).text) < 500
