"""A quota's rejection in the words of the template."""

import pytest

from trainyard.domain.status.quota_messages import in_words_of_template

LEAD = 'pods "train-worker-0-1" is forbidden: '


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (
            "failed quota: team: must specify limits.cpu for: main",
            "ResourceQuota team needs limits.cpu of container main of spec.template; set them there: ",
        ),
        (
            "failed quota: team: must specify limits.cpu for: main,trainyard-agent; requests.memory for: main,logs",
            (
                "ResourceQuota team needs limits.cpu and requests.memory of container main, "
                "requests.memory of container logs of spec.template; set them there: "
            ),
        ),
        ("exceeded quota: team, requested: pods=1, used: pods=4, limited: pods=4", ""),
        ("failed quota: team: must specify limits.cpu", ""),
        ("failed quota: team: must specify limits.cpu for: trainyard-agent", ""),
    ],
)
def test_container_and_resource_are_named(message: str, expected: str) -> None:
    assert in_words_of_template(LEAD + message) == f"{expected}{LEAD}{message}"
