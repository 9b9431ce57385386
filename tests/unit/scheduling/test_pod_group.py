"""The PodGroups of the three schedulers, as YAML."""

from typing import Any

import pytest
import yaml

from tests.support.jobs import job
from trainyard.api.internal_status import PodGroup
from trainyard.api.scheduling import GangScheduler as G
from trainyard.scheduling.pod_group import pod_group_name, pod_group_spec

GPUS = {
    "spec": {"containers": [{"name": "main", "image": "trainer:1", "resources": {"limits": {"nvidia.com/gpu": 8}}}]}
}
SERVERS = [{"name": "ps", "replicas": 2, "resources": {"requests": {"cpu": "1500m", "memory": "1Gi"}}}]


@pytest.mark.parametrize(
    ("scheduler", "members", "fields", "expected"),
    [
        (
            G.NATIVE,
            4,
            {},
            """
            schedulingPolicy: {gang: {minCount: 4}}
            """,
        ),
        (
            G.NATIVE,
            4,
            {
                "scheduling": {
                    "topology": {"key": "example.com/rack", "required": True},
                    "priorityClassName": "high",
                    "queue": "research",
                }
            },
            """
            schedulingPolicy: {gang: {minCount: 4}}
            schedulingConstraints: {topology: [{key: example.com/rack}]}
            priorityClassName: high
            """,
        ),
        (
            G.NATIVE,
            4,
            {"scheduling": {"topology": {"key": "example.com/rack"}}},
            """
            schedulingPolicy: {gang: {minCount: 4}}
            """,
        ),
        (
            G.VOLCANO,
            4,
            {"scheduling": {"queue": "of-kueue"}},
            """
            minMember: 4
            minResources: {nvidia.com/gpu: "32"}
            """,
        ),
        (
            G.VOLCANO,
            3,
            {
                "framework": "tensorflow",
                "roles": SERVERS,
                "template": {"spec": {**GPUS["spec"], "priorityClassName": "low"}},
            },
            """
            minMember: 3
            priorityClassName: low
            minResources: {cpu: "3", memory: "2147483648", nvidia.com/gpu: "8"}
            """,
        ),
        (
            G.COSCHEDULING,
            4,
            {"scheduling": {"priorityClassName": "high"}},
            """
            minMember: 4
            """,
        ),
    ],
    ids=["native", "required topology", "preferred topology", "volcano", "volcano with roles", "coscheduling"],
)
def test_spec(scheduler: G, members: int, fields: Any, expected: str) -> None:
    view = job(4, **{"template": GPUS, **fields}).job
    group = PodGroup(scheduler=scheduler, created_in_attempt=1, min_member=members)
    assert pod_group_spec(view, group) == yaml.safe_load(expected)


def test_queue_is_that_of_the_gang() -> None:
    group = PodGroup(scheduler=G.VOLCANO, created_in_attempt=1, min_member=4, queue="research")
    assert pod_group_spec(job(4).job, group)["queue"] == "research"


def test_each_group_has_its_own_name() -> None:
    groups = [PodGroup(scheduler=G.NATIVE, created_in_attempt=attempt, min_member=4) for attempt in (1, 12)]
    assert [pod_group_name(job(4).job, group) for group in groups] == ["train-1", "train-12"]
