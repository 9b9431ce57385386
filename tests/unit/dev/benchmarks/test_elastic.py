from pathlib import Path
from typing import Any

import pytest

from dev.benchmarks.elastic.course import EVENTS, PROGRAM
from dev.benchmarks.elastic.results import Change, Row, plain, rows, shortfalls, table
from dev.benchmarks.elastic.systems import GPUS, SYSTEMS
from dev.benchmarks.recovery.systems import Job
from trainyard.api.spec import TrainingJobSpec

JOB = Job("elastic-0", Path("/somewhere"))
CHANGES = [
    *(Change("shrink", "trainyard", n, seconds, 2.0, 0) for n, seconds in enumerate((3.0, 4.0, 5.0))),
    *(Change("shrink", "training-operator", n, seconds, 30.0, 4) for n, seconds in enumerate((30.0, 50.0))),
    Change("shrink", "training-operator", 2),
    Change("grow", "trainyard", 0, 20.0, 3.0, 0),
    Change("grow", "training-operator", 0, 12.0, 9.0, 3),
]


def templates(name: str) -> dict[str, Any]:
    spec = SYSTEMS[name].manifest(JOB, 4)["spec"]
    found: dict[str, Any] = spec.get("template") or spec["pytorchReplicaSpecs"]["Worker"]["template"]
    return found


def test_the_training_is_the_same_for_all() -> None:
    ours = templates("trainyard")["spec"]["containers"][0]
    for name in SYSTEMS:
        (theirs,) = templates(name)["spec"]["containers"]
        for part in ("image", "resources", "volumeMounts"):
            assert theirs[part] == ours[part]
        assert theirs["resources"]["limits"] == {"nvidia.com/gpu": GPUS}


def test_our_manifest_is_a_valid_job() -> None:
    made = SYSTEMS["trainyard"]
    spec = TrainingJobSpec.model_validate(made.manifest(JOB, 4)["spec"])
    assert spec.elastic
    assert (spec.replicas, spec.elastic.lowest, spec.elastic.highest) == (4, 1, 6)
    assert made.scaled(2) == {"spec": {"replicas": 2}}


def test_peers_get_equal_size_limits_and_wait_times() -> None:
    policy = SYSTEMS["training-operator-5s"].manifest(JOB, 4)["spec"]["elasticPolicy"]
    assert (policy["minReplicas"], policy["maxReplicas"]) == (1, 6)
    assert policy["rdzvConf"] == [{"key": "last_call_timeout", "value": "5"}]
    assert "rdzvConf" not in SYSTEMS["training-operator"].manifest(JOB, 4)["spec"]["elasticPolicy"]
    assert SYSTEMS["training-operator"].scaled(6) == {"spec": {"pytorchReplicaSpecs": {"Worker": {"replicas": 6}}}}


def test_rows() -> None:
    first, second, *_ = rows(CHANGES)
    assert first == Row("shrink", "trainyard", 3, 0, 4.0, 5.0, 2.0, 0)
    assert second == Row("shrink", "training-operator", 3, 1, 50.0, None, 30.0, 4), "what never came is the slowest"
    assert plain(first)["p50_s"] == 4.0
    assert "training-operator       3     1    50.0   never    30.0      4" in table(rows(CHANGES), {})


def test_shortfalls_are_reported() -> None:
    assert shortfalls(rows(CHANGES)) == ["grow: seconds 20.0 is not ahead of training-operator with 12.0"]
    slow = [Change("shrink", "trainyard", 0, 11.0, 9.0, 2), Change("shrink", "training-operator", 0, 10.0, 9.0, 1)]
    assert shortfalls(rows(slow)) == [
        "shrink: the median is 11.0 s; the target is 10 s",
        "shrink: seconds 11.0 is not ahead of training-operator with 10.0",
        "shrink: idle seconds 9.0 is not ahead of training-operator with 9.0",
        "shrink: 2 steps are repeated, and 1 under training-operator",
    ]
    never = [Change("shrink", "trainyard", 0)]
    assert shortfalls(rows(never)) == ["shrink: the median is never s; the target is 10 s"]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.name)
def test_each_event_requests_a_size_that_fits(event: Any) -> None:
    assert 1 <= event.size <= 6


def test_the_program_is_that_of_the_recoveries() -> None:
    assert PROGRAM.is_file()
