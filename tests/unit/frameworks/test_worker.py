"""What follows from a job's template for its workers."""

from decimal import Decimal
from typing import Any

import pytest

from tests.unit.frameworks.building import container, worker
from trainyard.frameworks.quantity import quantity
from trainyard.frameworks.worker import processes


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
    made = worker(container(resources={"limits": limits}), container("b", resources={"limits": {"nvidia.com/gpu": 5}}))
    assert processes(made.spec) == count


def test_number_that_is_said_is_the_number() -> None:
    assert processes(worker(container(resources={"limits": {"nvidia.com/gpu": 8}}), processesPerReplica=2).spec) == 2


def test_names_and_run_id() -> None:
    made = worker(index=2, attempt=7)
    assert (made.pod_name, made.host, made.master) == ("train-worker-2-7", "train-worker-2", "train-worker-0.train")
    assert made.run_id == "job-uid-7"


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("2", Decimal(2)),
        (2, Decimal(2)),
        (0.5, Decimal("0.5")),
        ("500m", Decimal("0.5")),
        ("1k", Decimal(1000)),
        ("1e3", Decimal(1000)),
        ("2Ki", Decimal(2048)),
        ("1M", Decimal(10**6)),
        ("", None),
        (None, None),
        ("two", None),
        ("NaN", None),
        ("Infinity", None),
    ],
)
def test_quantity(text: Any, number: Decimal | None) -> None:
    assert quantity(text) == number


@pytest.mark.parametrize("text", ["1e5000", "1e999999", "1e99999999", "9" * 20])
def test_quantities_beyond_kubernetes_own_are_none_and_cost_no_time(text: str) -> None:
    assert quantity(text) is None
