"""Ranks that follow the placement of workers: what each framework gets, and what stays with the index."""

import json
from typing import Any

import pytest

from tests.support.jobs import SUPERVISED, job
from tests.support.worker_pods import container, environment_of
from trainyard.api.internal_status import WorkerOrder
from trainyard.frameworks.environment import GROUP_RANK, restart_environment
from trainyard.frameworks.worker_spec import Worker

ORDER = (0, 2, 1, 3)


def placed(index: int, order: tuple[int, ...] = ORDER, size: int = 4, **spec: Any) -> Worker:
    """A worker of a group whose ranks have this order."""
    made = job(size, **{"template": SUPERVISED, "processesPerReplica": 1, **spec})
    scene = made.with_status(attempt=2, worker_order=WorkerOrder(workers=list(order)))
    return Worker(scene.job, index, 2, size, addresses=[f"10.0.0.{number}" for number in range(size)])


def read(made: Worker, *names: str) -> list[str | None]:
    found = restart_environment(made)
    return [found.get(name) for name in names]


def test_torch_gets_its_place_in_the_order() -> None:
    names = ("RANK", "NODE_RANK", "PET_NODE_RANK", GROUP_RANK, "TRAINYARD_REPLICA_INDEX")
    assert read(placed(2), *names) == ["1", "1", "1", "1", "2"]
    assert read(placed(1), *names) == ["2", "2", "2", "2", "1"]
    assert read(placed(3), *names) == ["3", "3", "3", "", "3"]


def test_all_meet_at_worker_0() -> None:
    for index in range(4):
        assert read(placed(index), "MASTER_ADDR", "PET_MASTER_ADDR") == ["train-worker-0.train"] * 2
    assert read(placed(0), "RANK", "PET_RDZV_CONF")[0] == "0"


def test_torchrun_sorts_the_workers_by_rank() -> None:
    """As text, also with more than ten workers."""
    order = (0, *reversed(range(1, 12)))
    addresses = {index: read(placed(index, order, 12), "PET_LOCAL_ADDR")[0] or "" for index in range(12)}
    assert tuple(sorted(addresses, key=addresses.__getitem__)) == order
    assert addresses[0] == "train-worker-0.train", "the others connect to it"


def test_torchrun_gets_addresses_without_an_order() -> None:
    assert read(placed(2, ()), "PET_LOCAL_ADDR", GROUP_RANK) == ["train-worker-2.train", ""]


def test_launcher_flags_get_the_order() -> None:
    template = {"spec": {"containers": [container(command=["sh", "-c", "torchrun --node_rank=$RANK train.py"])]}}
    assert read(placed(2, template=template, processesPerReplica=8), "RANK", "WORLD_SIZE") == ["1", "4"]


@pytest.mark.parametrize(
    ("framework", "names", "expected"),
    [
        ("jax", ("JAX_PROCESS_ID", "PROCESS_ID", "SLURM_PROCID"), ["1", "1", "1"]),
        ("jax", ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES"), ["train-worker-0.train:29501", "4"]),
        ("horovod", ("HOROVOD_RANK", "HOROVOD_CROSS_RANK", "HOROVOD_LOCAL_RANK"), ["1", "1", "0"]),
        ("horovod", ("HOROVOD_HOSTNAME", "HOROVOD_GLOO_RENDEZVOUS_ADDR"), ["train-worker-2", "10.0.0.0"]),
        ("deepspeed", ("RANK", "NODE_RANK"), ["1", "1"]),
        ("megatron", ("RANK", "NODE_RANK"), ["1", "1"]),
    ],
)
def test_other_frameworks_follow_the_order(framework: str, names: tuple[str, ...], expected: list[str]) -> None:
    assert read(placed(2, framework=framework), *names) == expected


def test_names_of_tensorflow_keep_their_index() -> None:
    made = placed(2, (), framework="tensorflow")
    assert json.loads(restart_environment(made)["TF_CONFIG"])["task"] == {"type": "worker", "index": 2}


def test_pod_does_not_hold_the_order() -> None:
    """An operator of an earlier release would not replace it in the next attempt."""
    assert GROUP_RANK not in environment_of(placed(2))
    assert environment_of(placed(2))["RANK"] == "1"
