"""Which sizes a group may have."""

from typing import Any

import pytest

from tests.support.jobs import NOW, SUPERVISED, because, job, summarize
from trainyard.api.reasons import Reason
from trainyard.api.status import ConditionType as C
from trainyard.domain.plan import plan
from trainyard.domain.scaling.group_size import allowed_size, largest_allowed

PAIRS = {"parallelism": {"tensor": 2}, "processesPerReplica": 1}


@pytest.mark.parametrize(
    ("elastic", "more", "sizes"),
    [
        ({"maxReplicas": 5}, {}, [None, 1, 2, 3, 4, 5, 5, 5]),
        ({"minReplicas": 3, "maxReplicas": 5}, {}, [None, None, None, 3, 4, 5, 5, 5]),
        ({"maxReplicas": 6, "multipleOf": 2}, {}, [None, None, 2, 2, 4, 4, 6, 6]),
        ({"sizes": [1, 4, 6]}, {}, [None, 1, 1, 1, 4, 4, 6, 6]),
        ({"maxReplicas": 6}, PAIRS, [None, None, 2, 2, 4, 4, 6, 6]),
        ({"sizes": [1, 4, 6]}, PAIRS, [None, None, None, None, 4, 4, 6, 6]),
        ({"maxReplicas": 7, "multipleOf": 3}, {**PAIRS, "processesPerReplica": 4}, [None, None, None, 3, 3, 3, 6, 6]),
        ({"maxReplicas": 7, "multipleOf": 3}, PAIRS, [None, None, None, None, None, None, 6, 6]),
    ],
)
def test_largest_allowed_size(elastic: dict[str, Any], more: dict[str, Any], sizes: list[int | None]) -> None:
    assert [largest_allowed(job(2, elastic=elastic, **more).job, workers) for workers in range(8)] == sizes


def test_fixed_size_job_has_no_other_size() -> None:
    assert largest_allowed(job(4).job, 4) is None


def test_disallowed_size_is_rounded_down_and_reported() -> None:
    elastic = {"maxReplicas": 6, "multipleOf": 2}
    scene = job(4, template=SUPERVISED, elastic=elastic).running().with_agents().with_spec(replicas=5)
    decided = plan(scene.snapshot, NOW)
    limited = decided.status.condition(C.SCALING_LIMITED)
    assert summarize(decided.status.conditions)["ScalingLimited"] == because(Reason.SIZE_NOT_ALLOWED)
    assert limited is not None
    assert limited.message == "replicas is 5, and elastic.multipleOf is 2: the group has 4 workers"
    assert [(event.type, event.note) for event in decided.events] == [("Warning", limited.message)]
    assert (decided.status.attempt, decided.status.internal.joining, decided.actions) == (1, None, [])
    scene = scene.with_status(**dict(decided.status))
    assert plan(scene.snapshot, NOW).events == [], "reported once"
    decided = plan(scene.with_spec(replicas=4).snapshot, NOW)
    assert summarize(decided.status.conditions)["ScalingLimited"] == because(Reason.SIZE_ALLOWED, holds=False)


@pytest.mark.parametrize(("replicas", "size"), [(7, 6), (3, 2), (5, 4)])
def test_copies_of_the_model_are_never_split(replicas: int, size: int) -> None:
    scene = job(2, template=SUPERVISED, elastic={"maxReplicas": 8}, **PAIRS).running().with_agents()
    seen = allowed_size(scene.with_spec(replicas=replicas).snapshot)
    assert seen.desired == size
    assert "one copy of the model needs 2 ranks" in seen.limited_because


def test_too_small_request_gets_smallest_size() -> None:
    model = {"processesPerReplica": 1, "parallelism": {"tensor": 4}}
    scene = job(4, template=SUPERVISED, elastic={"maxReplicas": 8}, **model).running().with_agents()
    seen = allowed_size(scene.with_spec(replicas=3).snapshot)
    assert (seen.desired, seen.invalid_because) == (4, "")
    assert seen.limited_because.endswith("one copy of the model needs 4 ranks: the group has 4 workers")
    none = allowed_size(scene.with_spec(replicas=3, elastic={"sizes": [1, 3]}).snapshot)
    assert "ranks" in none.invalid_because


@pytest.mark.parametrize("end", ["suspended", "finished"])
def test_inactive_job_has_no_scaling_limit(end: str) -> None:
    scene = job(4, template=SUPERVISED, elastic={"maxReplicas": 6, "multipleOf": 2}).running().with_agents()
    scene = scene.with_spec(replicas=5)
    scene = scene.with_status(**dict(plan(scene.snapshot, NOW).status))
    stops = scene.with_spec(lifecycle={"suspend": True})
    scene = stops if end == "suspended" else scene.succeeded(0, 1, 2, 3)
    for _ in range(3):
        scene = scene.with_status(**dict(plan(scene.snapshot, NOW).status))
    limited = scene.status.condition(C.SCALING_LIMITED)
    assert limited is not None
    assert limited.status == "False"


def test_failed_elastic_job_counts_its_allowed_workers() -> None:
    elastic = {"maxReplicas": 6, "multipleOf": 2}
    scene = job(4, template=SUPERVISED, elastic=elastic, recovery={"maxRestarts": 0}).running().failed(1)
    assert plan(scene.with_spec(replicas=5).snapshot, NOW).status.ready == "0/4"
