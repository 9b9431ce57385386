"""What pods request, by the rule of the scheduler."""

from typing import Any

import pytest

from trainyard.domain.state.pod_requests import pod_requests, total


def asking(requests: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return {"name": "c", **({"resources": {"requests": requests}} if requests else {}), **more}


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        ({"containers": [asking()]}, {}),
        (
            {"containers": [asking({"cpu": "500m"}), asking({"cpu": 1, "memory": "1Gi"})]},
            {"cpu": "1500m", "memory": "1073741824"},
        ),
        ({"containers": [{"resources": {"limits": {"nvidia.com/gpu": 8}}}]}, {"nvidia.com/gpu": "8"}),
        ({"containers": [{"resources": {"limits": {"cpu": 2}, "requests": {"cpu": 1}}}]}, {"cpu": "1"}),
        ({"initContainers": [asking({"cpu": 3})], "containers": [asking({"cpu": 1})]}, {"cpu": "3"}),
        (
            {"initContainers": [asking({"cpu": 3}), asking({"cpu": 2})], "containers": [asking({"cpu": 1})]},
            {"cpu": "3"},
        ),
        (
            {"initContainers": [asking({"cpu": 1}, restartPolicy="Always")], "containers": [asking({"cpu": 4})]},
            {"cpu": "5"},
        ),
        (
            {
                "initContainers": [asking({"cpu": 2}, restartPolicy="Always"), asking({"cpu": 3})],
                "containers": [asking({"cpu": 1})],
            },
            {"cpu": "5"},
        ),
        (
            {
                "initContainers": [asking({"cpu": 3}), asking({"cpu": 2}, restartPolicy="Always")],
                "containers": [asking({"cpu": 2})],
            },
            {"cpu": "4"},
        ),
        (
            {"containers": [asking({"cpu": 1})], "overhead": {"cpu": "250m", "memory": "64"}},
            {"cpu": "1250m", "memory": "64"},
        ),
        (
            {"containers": [asking({"cpu": 1, "gpu": 2})], "resources": {"requests": {"cpu": 4}}},
            {"cpu": "4", "gpu": "2"},
        ),
        ({"containers": [asking({"cpu": "a lot"})]}, {}),
        ({"containers": [asking({"cpu": "100u"})]}, {"cpu": "1m"}),
    ],
    ids=[
        "nothing",
        "containers together",
        "limits stand in",
        "requests come first",
        "a large init container",
        "init containers one after the other",
        "a sidecar",
        "an init container beside a sidecar",
        "a sidecar after an init container",
        "overhead",
        "the whole pod",
        "no quantity",
        "rounded up",
    ],
)
def test_requests_of_a_pod(pod: Any, expected: Any) -> None:
    assert total([(1, pod_requests(pod))]) == expected


def test_total_of_several_pods() -> None:
    workers, servers = (
        pod_requests({"containers": [asking({"cpu": "1500m"})]}),
        pod_requests({"containers": [asking({"cpu": 1, "memory": 8})]}),
    )
    assert total([(3, workers), (2, servers)]) == {"cpu": "6500m", "memory": "16"}
