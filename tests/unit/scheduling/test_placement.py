"""For which jobs ranks follow the placement of workers, and where the places come from."""

from typing import Any

import pytest

from tests.support.jobs import SUPERVISED, Scene, job
from trainyard.scheduling.placement import (
    follows_placement,
    ignored_order,
    obstacle,
    placement_order,
    unit_of,
)
from trainyard.scheduling.rank_order import Place

Json = dict[str, Any]
PLACEMENT, INDEX = {"rankOrder": "placement"}, {"rankOrder": "index"}
NODES = ("n0", "n1", "n0", "n1")


def template(**main: Any) -> Json:
    return {"spec": {"containers": [{"name": "main", "image": "trainer:1", "command": ["python", "train.py"], **main}]}}


def supervised(replicas: int = 4, **spec: Any) -> Scene:
    return job(replicas, **{"template": SUPERVISED, **spec})


def waiting(replicas: int = 4, nodes: tuple[str, ...] = NODES, **spec: Any) -> Scene:
    """A group of which all agents wait for the order, on these nodes."""
    scene = supervised(replicas, **spec).running()
    for index, node in enumerate(nodes):
        scene = scene.pod(index, ranks_ordered=True, node=node)
    return scene


def unknown(_node: str) -> Place:
    return ()


@pytest.mark.parametrize(
    ("spec", "by_default", "expected"),
    [
        ({}, False, False),
        ({}, True, True),
        ({"scheduling": PLACEMENT}, False, True),
        ({"scheduling": INDEX}, True, False),
        ({"parallelism": {"tensor": 2}}, False, True),
        ({"parallelism": {"tensor": 2}, "processesPerReplica": 2}, False, False),
        ({"parallelism": {"tensor": 2}, "scheduling": INDEX}, False, False),
        ({"framework": "tensorflow", "scheduling": PLACEMENT}, True, False),
    ],
    ids=str,
)
def test_which_groups_wait_for_an_order(spec: Json, *, by_default: bool, expected: bool) -> None:
    assert follows_placement(supervised(**spec).job, 4, by_default=by_default) is expected


@pytest.mark.parametrize(("workers", "expected"), [(1, False), (2, False), (3, True), (10_000, True)])
def test_two_workers_need_no_order(workers: int, *, expected: bool) -> None:
    assert follows_placement(supervised().job, workers, by_default=True) is expected


@pytest.mark.parametrize("framework", ["torch", "deepspeed", "megatron", "jax", "horovod"])
def test_ranks_of_these_frameworks_can_be_anywhere(framework: str) -> None:
    assert obstacle(supervised(framework=framework).job) == ""


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ({"framework": "mpi"}, "with the framework mpi ranks follow the indexes of workers"),
        ({"recovery": {"agent": "none"}}, "no agent that could wait"),
        ({"template": template(command=None)}, "set command of the main container"),
        ({"template": template(env=[{"name": "RANK", "value": "7"}])}, "sets RANK: remove it from env"),
        ({"template": template(args=["--node-rank=$(NODE_RANK)"])}, "read the rank when the program starts"),
        ({"template": template(args=["--index=$TRAINYARD_REPLICA_INDEX"])}, "uses the index of a worker"),
        (
            {"framework": "jax", "template": template(resources={"limits": {"google.com/tpu": 4}})},
            "TPUs of a slice have a fixed order",
        ),
        (
            {
                "template": template(
                    env=[
                        {
                            "name": "NUMBER",
                            "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['trainyard.dev/index']"}},
                        }
                    ]
                )
            },
            "uses the index of a worker",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_keeps_ranks_by_index(spec: Json, why: str) -> None:
    made = supervised(**{**spec, "scheduling": PLACEMENT})
    assert why in obstacle(made.job)
    assert why in ignored_order(made.job, served=True)
    assert not follows_placement(made.job, 4, by_default=True)


def test_program_may_read_its_rank_at_start() -> None:
    shell = template(command=["sh", "-c", "torchrun --node_rank=$NODE_RANK --nnodes=$PET_NNODES train.py"])
    assert obstacle(supervised(template=shell).job) == ""


def test_ignored_order_is_reported_only_if_wanted() -> None:
    assert ignored_order(supervised(framework="mpi").job, served=True) == ""
    assert ignored_order(supervised(scheduling=PLACEMENT).job, served=True) == ""
    assert "agent.enabled" in ignored_order(supervised(scheduling=PLACEMENT).job, served=False)


def test_workers_of_a_node_get_neighbouring_ranks() -> None:
    assert placement_order(waiting().snapshot, unknown) == [0, 2, 1, 3]


def test_no_order_before_all_have_a_node() -> None:
    assert placement_order(waiting().pod(2, node=None).snapshot, unknown) == ()


def test_no_order_if_an_agent_does_not_wait() -> None:
    """For example that of a pod from an earlier release, whose ranks run already."""
    assert placement_order(waiting().pod(2, ranks_ordered=False).snapshot, unknown) == ()
    assert placement_order(waiting().gone(1).snapshot, unknown) == ()


def test_labels_of_nodes_form_racks() -> None:
    racks = {"n0": ("rack-a",), "n1": ("rack-b",), "n2": ("rack-a",), "n3": ("rack-b",)}
    snapshot = waiting(nodes=("n0", "n1", "n2", "n3")).snapshot
    assert placement_order(snapshot, unknown) == [0, 1, 2, 3]
    assert placement_order(snapshot, racks.__getitem__) == [0, 2, 1, 3]


def test_labels_of_pods_form_racks() -> None:
    scene = waiting(nodes=("n0", "n1", "n2", "n3"))
    for index, rack in enumerate("abab"):
        scene = scene.pod(index, place=("", rack))
    assert placement_order(scene.snapshot, unknown) == [0, 2, 1, 3]
    # What the node says wins, and the pod adds what is missing.
    zones = {"n0": ("x", ""), "n1": ("x", ""), "n2": ("y", ""), "n3": ("x", "")}
    assert placement_order(scene.snapshot, zones.__getitem__) == [0, 1, 3, 2]


def test_tensor_parallel_workers_share_a_node() -> None:
    split = {"parallelism": {"tensor": 2}, "processesPerReplica": 1}
    nodes = ("n0", "n1", "n1", "n0", "n2", "n2")
    assert placement_order(waiting(6, nodes, **split).snapshot, unknown) == [0, 3, 1, 2, 4, 5]


@pytest.mark.parametrize(
    ("parallelism", "processes", "expected"),
    [
        (None, 1, 1),
        ({"tensor": 8}, 8, 1),
        ({"tensor": 8}, 4, 2),
        ({"tensor": 8}, 1, 8),
        ({"tensor": 4, "context": 4}, 8, 2),
        ({"tensor": 16, "context": 4}, 8, 2),
        ({"tensor": 6}, 4, 1),
        ({"pipeline": 16}, 1, 1),
    ],
    ids=str,
)
def test_workers_of_a_tensor_parallel_group(parallelism: Json | None, processes: int, expected: int) -> None:
    scene = supervised(8, parallelism=parallelism, processesPerReplica=processes)
    assert unit_of(scene.job) == expected
