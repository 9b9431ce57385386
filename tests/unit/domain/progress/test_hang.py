"""The rank on which a hung group is blocked, from the stacks that agents report."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from tests.support.jobs import NOW, Scene, job, stored
from trainyard.domain.plan import plan
from trainyard.domain.progress.hang import culprit
from trainyard.domain.state.snapshot import Snapshot
from trainyard.domain.state.worker_views import RankProgress, WorkerReport

WAITS, LOADS, READS = "distributed_c10d.py:2806 in all_reduce", "data.py:12 in load", "data.py:9 in read"
STOPPED = "stopped"


def reported(scene: Scene, places: Mapping[int, str], *, each: int = 1, attempt: int = 1) -> Snapshot:
    """The job with reports of where its ranks stand, `each` of them a worker."""
    reports = [
        WorkerReport(
            attempt,
            index,
            tuple(_progress(rank, places.get(rank)) for rank in range(index * each, (index + 1) * each)),
        )
        for index in range(scene.spec.replicas)
    ]
    return replace(scene.snapshot, reports=reports)


def _progress(rank: int, place: str | None) -> RankProgress:
    if place == STOPPED:
        return RankProgress(rank, 9, "train", blocked=place)
    return RankProgress(rank, 9, "train", stack=() if place is None else (place, "train.py:3 in main"))


def hung(replicas: int = 4, first: int = 0, rank: int | None = None, **spec: object) -> Scene:
    """A job that hangs, of which this worker's agent was the first to notice, and named this rank."""
    message = "rank 0 hangs: no progress for 30 seconds after step 9"
    return job(replicas, **spec).running().failed(first, exit_code=91, message=message, rank=rank)


@pytest.mark.parametrize(
    ("places", "rank"),
    [
        ({0: WAITS, 1: WAITS, 2: LOADS, 3: WAITS}, 2),
        ({0: LOADS, 1: WAITS, 2: WAITS}, 0),
        ({0: WAITS, 1: WAITS, 2: WAITS, 3: WAITS}, None),
        ({0: WAITS, 1: LOADS}, None),
        ({0: WAITS, 1: WAITS, 2: LOADS, 3: READS}, None),
        ({0: WAITS, 1: WAITS, 2: LOADS, 3: LOADS}, None),
        ({0: WAITS, 1: WAITS, 2: STOPPED, 3: WAITS}, 2),
        ({0: WAITS, 1: STOPPED}, 1),
        ({0: WAITS, 1: STOPPED, 2: STOPPED}, None),
        ({0: STOPPED}, None),
        ({}, None),
    ],
)
def test_only_rank_with_another_stack(places: Mapping[int, str], rank: int | None) -> None:
    snapshot = reported(hung(), places)
    found = culprit(snapshot)
    assert (found.rank if found else None) == rank
    if found:
        assert (found.frame or found.blocked, found.pod.index) == (places[found.rank], rank)


def test_reports_of_earlier_attempt_name_no_culprit() -> None:
    scene = job(4).running(attempt=2)
    snapshot = reported(scene, {0: WAITS, 1: WAITS, 2: LOADS, 3: WAITS})
    assert culprit(snapshot) is None


def test_failure_names_hung_rank_and_node() -> None:
    status = plan(reported(hung(rank=0), {0: WAITS, 1: WAITS, 2: LOADS, 3: WAITS}), NOW).status
    assert status.last_failure is not None
    assert (status.last_failure.rank, status.last_failure.pod, status.last_failure.node) == (
        2,
        "train-worker-2-1",
        "node2",
    )
    assert status.last_failure.message.splitlines() == [
        f"rank 2 (pod train-worker-2-1 on node2) is hung at {LOADS}; all other ranks are blocked on it",
        "rank 0 hangs: no progress for 30 seconds after step 9",
    ]
    assert status.restarts.hangs == 1
    assert stored(status) == status


def test_event_names_hung_rank() -> None:
    (event,) = plan(reported(hung(), {0: WAITS, 1: WAITS, 2: LOADS, 3: WAITS}), NOW).events
    assert event.note.startswith(
        f"rank 2 (pod train-worker-2-1 on node2) is hung at {LOADS}; all other ranks are blocked on it; worker 0 of attempt 1"
        " (pod train-worker-0-1 on node0) detected it first: rank 0 hangs: no progress for 30 seconds after step 9"
    )


def test_unresponsive_rank_is_named() -> None:
    (event,) = plan(reported(hung(), {0: WAITS, 1: WAITS, 2: STOPPED, 3: WAITS}), NOW).events
    assert (
        "rank 2 (pod train-worker-2-1 on node2) is stopped by a signal; all other ranks are blocked on it; "
        in event.note
    )


def test_culprit_among_several_ranks_per_worker() -> None:
    places = dict.fromkeys(range(8), WAITS) | {5: LOADS}
    status = plan(reported(hung(processesPerReplica=2), places, each=2), NOW).status
    assert status.last_failure is not None
    assert (status.last_failure.rank, status.last_failure.pod) == (5, "train-worker-2-1")


def test_rank_named_by_agent_is_not_repeated() -> None:
    places = {0: WAITS, 1: WAITS, 2: LOADS, 3: WAITS}
    status = plan(reported(hung(first=2, rank=2), places), NOW).status
    assert status.last_failure is not None
    assert status.last_failure.message == "rank 0 hangs: no progress for 30 seconds after step 9"


def test_a_failure_of_another_kind_has_no_culprit() -> None:
    scene = job(4).running().failed(0, exit_code=1, message="boom")
    status = plan(reported(scene, {0: WAITS, 1: WAITS, 2: LOADS, 3: WAITS}), NOW).status
    assert status.last_failure is not None
    assert (status.last_failure.rank, status.last_failure.message) == (0, "boom")
