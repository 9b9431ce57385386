"""How many ranks there are."""

from typing import Any

import pytest

from tests.support.jobs import spec
from trainyard.domain.ranks import processes


def asking(*limits: Any) -> dict[str, Any]:
    """A template with a container for each of these limits."""
    containers = [
        {"name": f"c{i}", "image": "trainer:1", "resources": {"limits": each}} for i, each in enumerate(limits)
    ]
    return {"spec": {"containers": containers}}


@pytest.mark.parametrize(
    ("limits", "count"),
    [
        (None, 1),
        ({"cpu": "8"}, 1),
        ({"nvidia.com/gpu": "0"}, 1),
        ({"nvidia.com/gpu": 1}, 1),
        ({"nvidia.com/gpu": 8}, 8),
        ({"nvidia.com/gpu": "8"}, 8),
        ({"amd.com/gpu": "4"}, 4),
        ({"habana.ai/gaudi": "8"}, 8),
        ({"aws.amazon.com/neuron": "16"}, 16),
        ({"google.com/tpu": "4"}, 4),
        ({"nvidia.com/mig-1g.5gb": 2, "nvidia.com/mig-3g.20gb": 1}, 3),
        ({"vpc.amazonaws.com/efa": 4, "nvidia.com/gpu": 8}, 8),
        ({"rdma/hca": 1}, 1),
        # Nonsense is for the API server to refuse, and no reason to stumble here.
        ({"nvidia.com/gpu": "eight"}, 1),
        ({"nvidia.com/gpu": -2}, 1),
    ],
)
def test_auto_counts_the_accelerators_of_the_main_container(limits: Any, count: int) -> None:
    assert processes(spec(template=asking(limits, {"nvidia.com/gpu": 5}))) == count


def test_number_that_is_said_is_the_number() -> None:
    assert processes(spec(template=asking({"nvidia.com/gpu": 8}), processesPerReplica=2)) == 2
