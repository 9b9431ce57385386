"""The hash of what all pods of a group share: each change that needs a suspension changes it, and nothing else does."""

from typing import Any

import pytest

from tests.support.jobs import TEMPLATE, spec
from trainyard.domain.state.job_template import template_hash

ELASTIC = {"elastic": {"maxReplicas": 4}}
ALONE = {"recovery": {"agent": "none"}}


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"template": {"spec": {"containers": [{"name": "main", "image": "trainer:2"}]}}}, id="image"),
        pytest.param({"template": {**TEMPLATE, "metadata": {"labels": {"team": "a"}}}}, id="a label"),
        pytest.param({"processesPerReplica": 2}, id="processes"),
        pytest.param({"parallelism": {"tensor": 2}}, id="parallelism"),
        pytest.param(ALONE, id="the agent"),
        pytest.param({"network": {"profile": "efa"}}, id="the network profile"),
    ],
)
def test_change_under_suspension_changes_the_hash(fields: dict[str, Any]) -> None:
    assert template_hash(spec(2, **fields)) != template_hash(spec(2))


@pytest.mark.parametrize(
    "fields",
    [
        {"replicas": 3},
        {"lifecycle": {"suspend": True, "activeDeadlineSeconds": 9}},
        {"recovery": {"maxRestarts": 1, "hangTimeoutSeconds": 60, "warmStart": False}},
        ELASTIC,
    ],
)
def test_change_of_a_running_group_keeps_the_hash(fields: dict[str, Any]) -> None:
    assert template_hash(spec(**{"replicas": 2, **fields})) == template_hash(spec(2))


def test_order_and_new_defaults_keep_the_hash() -> None:
    template = {"spec": {"containers": [{"image": "trainer:1", "name": "main"}]}}
    assert template_hash(spec(2, template=template)) == template_hash(spec(2))
    assert template_hash(spec(2, parallelism={"tensor": 2})) == template_hash(
        spec(2, parallelism={"tensor": 2, "pipeline": 1})
    )


def test_bounds_without_the_agent_are_part_of_it() -> None:
    assert template_hash(spec(2, **ALONE, **ELASTIC)) != template_hash(spec(2, **ALONE, elastic={"maxReplicas": 5}))


@pytest.mark.parametrize(
    ("fields", "expected"),
    [({}, "137dee5e2fcb2afa"), ({**ALONE, **ELASTIC, "parallelism": {"tensor": 2}}, "b8a6b67a52a2c453")],
    ids=["plain", "all of it"],
)
def test_hash_is_the_same_in_each_release(fields: dict[str, Any], expected: str) -> None:
    """Another value would restart every job that is scaled after an upgrade."""
    assert template_hash(spec(2, **fields)) == expected
