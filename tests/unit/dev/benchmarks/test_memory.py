"""The benchmark of memory: its jobs have the largest size, and a large peak is named."""

import orjson

from dev.benchmarks.memory import Figure, complaints, figure, job
from trainyard.api.status import Phase
from trainyard.controller.reconcile.resources import MAX_SPEC_BYTES, PAGE_JOBS


def test_jobs_have_almost_the_largest_size() -> None:
    assert 0.95 * MAX_SPEC_BYTES < len(orjson.dumps(job(1, 1, Phase.PENDING)["spec"])) < MAX_SPEC_BYTES


async def test_all_jobs_are_read_in_all_phases() -> None:
    found = await figure(jobs=12, page=5, phase=Phase.COMPLETE)
    assert complaints([found]) == []
    assert 0 < found.before_mib < found.peak_mib


def test_large_peak_and_unreadable_jobs_are_named() -> None:
    large = Figure(Phase.PENDING, PAGE_JOBS, 1000, 70, 500, 900)
    assert [each.endswith("819 are allowed") for each in complaints([large])] == [True]
    broken = Figure(Phase.PENDING, PAGE_JOBS, 1000, 70, 500, 600, "3 of 1000 jobs cannot be read")
    assert complaints([broken]) == ["3 of 1000 jobs cannot be read"]
    assert complaints([Figure(Phase.PENDING, 10 * PAGE_JOBS, 1000, 70, 500, 900)]) == []
