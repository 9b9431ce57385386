"""Sizes of elastic jobs: what the API server refuses, with field and fix, and what it lets through for the operator to clamp."""

from typing import Any

import pytest

from tests.api.nodes import Namespace
from tests.api.plane import Plane
from tests.api.process import operator
from tests.support.control_plane import RefusedError
from tests.support.polling import until

EVEN = {"maxReplicas": 8, "multipleOf": 2}


@pytest.mark.parametrize(
    ("replicas", "elastic", "message"),
    [
        (1, {}, "give either maxReplicas"),
        (1, {"maxReplicas": 4, "sizes": [1, 2]}, "give either maxReplicas"),
        (2, {"minReplicas": 4, "maxReplicas": 2}, "elastic.maxReplicas must not be smaller than elastic.minReplicas"),
        (2, {"maxReplicas": 2, "multipleOf": 4}, "elastic.maxReplicas must not be smaller"),
        (2, {"minReplicas": 0, "maxReplicas": 2}, r"spec.elastic.minReplicas.*greater than or equal to 1"),
        (2, {"maxReplicas": 0}, r"spec.elastic.maxReplicas.*greater than or equal to 1"),
        (2, {"maxReplicas": 4, "multipleOf": 0}, r"spec.elastic.multipleOf.*greater than or equal to 1"),
        (2, {"minReplicas": 1, "maxReplicas": 4, "multipleOf": 2}, "elastic.minReplicas must be a multiple of"),
        (2, {"maxReplicas": 5, "multipleOf": 2}, "elastic.maxReplicas must be a multiple of"),
        (2, {"sizes": [2, 1]}, "elastic.sizes must be sorted"),
        (2, {"sizes": [1, 2, 2]}, r"spec.elastic.sizes\[2\].*Duplicate value"),
        (2, {"sizes": []}, r"spec.elastic.sizes.*at least 1 items"),
        (2, {"sizes": [0, 2]}, r"spec.elastic.sizes\[0\].*greater than or equal to 1"),
        (2, {"sizes": [1, 2], "multipleOf": 2}, "leave out minReplicas and multipleOf"),
        (2, {"maxReplicas": 4, "growAfterSeconds": 1}, r"spec.elastic.growAfterSeconds.*greater than or equal to 5"),
        (
            2,
            {"maxReplicas": 4, "shrinkAfterSeconds": -1},
            r"spec.elastic.shrinkAfterSeconds.*greater than or equal to 0",
        ),
        (
            2,
            {"maxReplicas": 4, "onDemandReplicas": 5},
            "elastic.onDemandReplicas must not be larger than the largest size",
        ),
        (
            2,
            {"sizes": [2, 4], "onDemandReplicas": 5},
            "elastic.onDemandReplicas must not be larger than the largest size",
        ),
        (2, {"maxReplicas": 4, "stopTimeoutSeconds": 1}, r"stopTimeoutSeconds.*greater than or equal to 2"),
        (9, EVEN, "replicas is 9, but elastic allows 2 to 8; change replicas or the bounds in elastic"),
        (1, {"minReplicas": 2, "maxReplicas": 4}, "but elastic allows"),
        (3, EVEN, r"replicas is 3, but must be a multiple of 2 \(elastic.multipleOf\); change one of them"),
        (3, {"sizes": [2, 4]}, r"replicas is 3, but must be one of elastic.sizes, \[2, 4\]; change one of them"),
        (5, {"sizes": [2, 4]}, "replicas is 5, but elastic allows 2 to 4; change"),
    ],
)
def test_invalid_elastic_spec_names_field_and_fix(
    lab: Namespace, replicas: int, elastic: dict[str, Any], message: str
) -> None:
    with pytest.raises(RefusedError, match=message):
        lab.submit("never", replicas=replicas, elastic=elastic)


def test_scale_accepts_values_between_sizes_within_the_bounds(lab: Namespace) -> None:
    lab.submit("even", replicas=2, elastic=EVEN)
    lab.scale("even", 3)
    with pytest.raises(RefusedError, match="but elastic allows"):
        lab.scale("even", 9)
    with pytest.raises(RefusedError, match="but elastic allows"):
        lab.scale("even", 1)
    lab.change("even", lifecycle={"suspend": True})
    with pytest.raises(RefusedError, match="replicas is 3, but must be a multiple of 4"):
        lab.change("even", elastic={**EVEN, "multipleOf": 4})
    lab.change("even", elastic={**EVEN, "multipleOf": 4}, replicas=4)
    lab.remove("even")
    lab.submit("pairs", replicas=2, processesPerReplica=1, parallelism={"tensor": 2}, elastic={"maxReplicas": 8})
    lab.scale("pairs", 5)
    lab.remove("pairs")


def test_sizes_splitting_a_model_replica_are_rejected(lab: Namespace) -> None:
    pairs = {"processesPerReplica": 1, "parallelism": {"tensor": 2}}
    with pytest.raises(RefusedError, match=r"spec.elastic.sizes: .*each of elastic.sizes, times processesPerReplica"):
        lab.submit("never", replicas=4, elastic={"sizes": [1, 4]}, **pairs)
    lab.submit("pairs", replicas=4, elastic={"sizes": [2, 4, 6]}, **pairs)
    lab.scale("pairs", 3)
    lab.change("pairs", lifecycle={"suspend": True})
    with pytest.raises(RefusedError, match=r"must be a multiple of parallelism\.tensor"):
        lab.change("pairs", parallelism={"tensor": 4})
    lab.change("pairs", replicas=4)
    with pytest.raises(RefusedError, match=r"each of elastic.sizes, times processesPerReplica"):
        lab.change("pairs", parallelism={"tensor": 4})
    lab.change("pairs", parallelism={"tensor": 4}, processesPerReplica=2)
    lab.change(
        "pairs",
        lifecycle={"suspend": True},
        replicas=2,
        parallelism={"tensor": 2},
        elastic={"maxReplicas": 3, "sizes": None},
    )
    lab.scale("pairs", 3)
    with pytest.raises(RefusedError, match=r"is 3, but must be a multiple of 2"):
        lab.change("pairs", processesPerReplica=1)
    lab.remove("pairs")


@pytest.mark.usefixtures("granted")
def test_group_uses_next_smaller_size_and_reports_it(plane: Plane, lab: Namespace) -> None:
    with operator(plane, "clamping") as op:
        lab.submit("even", replicas=2, elastic=EVEN)
        lab.until_phase("Running", "even")
        lab.scale("even", 5)
        until(lambda: lab.status("even")["attempt"] == 2, 20, "the new size")
        lab.until_phase("Running", "even")
        limited = lab.condition("ScalingLimited", "even")
        assert (limited["status"], limited["reason"]) == ("True", "SizeNotAllowed")
        assert limited["message"] == "replicas is 5, and elastic.multipleOf is 2: the group has 4 workers"
        assert len(lab.pods("even")) == 4
        lab.scale("even", 4)
        until(lambda: lab.condition("ScalingLimited", "even")["status"] == "False", 20, "the condition")
        assert lab.status("even")["attempt"] == 2
        assert not op.bugs()
    lab.remove("even")


def test_between_two_sizes_everything_else_can_be_changed(lab: Namespace) -> None:
    lab.submit("even", replicas=2, elastic=EVEN)
    lab.scale("even", 3)
    lab.change("even", elastic={**EVEN, "growAfterSeconds": 90, "onDemandReplicas": 1})
    lab.remove("even")


def test_without_agent_bounds_are_immutable_while_running(lab: Namespace) -> None:
    lab.submit("plain", replicas=2, recovery={"agent": "none"}, elastic={"maxReplicas": 4})
    lab.scale("plain", 3)
    for elastic in ({"maxReplicas": 5}, None):
        with pytest.raises(
            RefusedError, match="without the agent, elastic can be changed only while the job is suspended"
        ):
            lab.change("plain", elastic=elastic)
    lab.change("plain", lifecycle={"suspend": True})
    lab.change("plain", elastic={"maxReplicas": 5})
    lab.remove("plain")
