"""The size of a group to which workers join, or are about to: what has to be there for it to keep its own."""

from typing import Any

import pytest

from tests.support.elastic_jobs import elastic_running
from tests.support.jobs import NOW, ago, job, worker
from tests.support.reconciles import running
from trainyard.api.internal_status import Joining
from trainyard.domain.scaling.group_size import decide_size, is_scheduled, join_timeout_left, target_size


@pytest.mark.parametrize(
    ("stored", "desired"),
    [
        pytest.param({"launched_attempt": 1}, 2, id="launched"),
        pytest.param({"launched_attempt": 0}, 4, id="not launched"),
        pytest.param(
            {"launched_attempt": 0, "joining": Joining(current_size=2, target_size=4, attempt=1)}, 2, id="joining"
        ),
    ],
)
def test_only_launched_group_waits_for_joining_workers(stored: dict[str, Any], desired: int) -> None:
    scene = running(2).with_spec(replicas=4).with_status(**stored)
    assert decide_size(scene.snapshot, NOW).desired == desired


def test_allowed_size_is_no_limit_while_others_join() -> None:
    size = decide_size(elastic_running(3).with_spec(replicas=6).snapshot, NOW)
    assert (size.desired, size.allowed, size.limited_because) == (3, 6, "")


@pytest.mark.parametrize(("first", "target"), [(5, 5), (3, 6)])
def test_fewer_workers_are_requested_if_more_than_now(first: int, target: int) -> None:
    joining = Joining(current_size=3, target_size=first, attempt=1, requested_size=6)
    scene = elastic_running(3).with_spec(replicas=6).with_status(joining=joining)
    assert target_size(scene.snapshot, NOW) == target


@pytest.mark.parametrize(
    ("pod", "expected"), [({}, False), ({"scheduled": True}, True), ({"phase": "Failed", "ended": True}, True)]
)
def test_ended_pod_needs_no_node(pod: dict[str, Any], *, expected: bool) -> None:
    assert is_scheduled(worker(0, **pod)) is expected


def test_only_elastic_groups_have_a_join_timeout() -> None:
    joining = Joining(current_size=3, target_size=6, attempt=1, ready_since=ago(10))
    elastic = elastic_running(3).with_status(joining=joining).snapshot
    assert join_timeout_left(elastic, NOW).total_seconds() == 50
    for scene in (
        job(3).running().with_status(joining=joining),
        elastic_running(3),
        elastic_running(3).with_status(joining=joining.evolve(ready_since=None)),
    ):
        assert not join_timeout_left(scene.snapshot, NOW)
