"""Groups with some workers on on-demand nodes and the rest on spot nodes, which are used first and reclaimed first."""

from collections.abc import Iterator
from contextlib import contextmanager

from tests.cluster.elastic_group import LONG, closed, counts, newest, training, trains
from tests.cluster.kube import Json, Kube, main_container

WORKERS_PER_NODE = 2
"""Of a node with eight GPUs: a worker takes four."""
TAINT = "cloud.google.com/gke-spot=true"
SAFE, SPOT = "node1", ("node2", "node3")


@contextmanager
def spot_nodes(kube: Kube) -> Iterator[None]:
    """Make two of three nodes spot nodes, with the labels of two providers and one provider's taint."""
    kube.run("label", "node", SPOT[0], "karpenter.sh/capacity-type=spot")
    kube.run("label", "node", SPOT[1], TAINT)
    kube.run("taint", "node", SPOT[1], f"{TAINT}:NoSchedule")
    try:
        yield
    finally:
        kube.run("taint", "node", SPOT[1], f"{TAINT}:NoSchedule-")
        kube.run("label", "node", SPOT[1], f"{TAINT.partition('=')[0]}-")
        kube.run("label", "node", SPOT[0], "karpenter.sh/capacity-type-")


def mixed(replicas: int, on_demand: int) -> Json:
    manifest = training(replicas, {"minReplicas": 2, "maxReplicas": 6, "onDemandReplicas": on_demand})
    main_container(manifest)["resources"]["limits"] = {"nvidia.com/gpu": 4}
    return manifest


def nodes_of(kube: Kube, size: int) -> list[str]:
    """Return the node of each worker."""
    return [newest(kube, index)["spec"]["nodeName"] for index in range(size)]


@LONG
def test_spot_workers_are_reclaimed_first_and_return(kube: Kube) -> None:
    with spot_nodes(kube):
        kube.apply(mixed(6, on_demand=2))
        before = trains(kube, 6)
        assert nodes_of(kube, 6)[:WORKERS_PER_NODE] == [SAFE, SAFE]
        assert {*nodes_of(kube, 6)[WORKERS_PER_NODE:]} == {*SPOT}
        with closed(kube, SPOT[1]):
            # As a provider reclaims a spot node.
            for index in range(6):
                pod = newest(kube, index)
                if pod["spec"]["nodeName"] == SPOT[1]:
                    kube.delete_pod(pod["metadata"]["name"])
            status = trains(kube, 4, before["attempt"])
            assert nodes_of(kube, 4) == [SAFE, SAFE, SPOT[0], SPOT[0]]
            assert counts(status, before)[2] == 1
        status = trains(kube, 6, status["attempt"])
        assert {*nodes_of(kube, 6)[WORKERS_PER_NODE:]} == {*SPOT}
        # A manual scale-down removes spot workers, too.
        kube.run("scale", "tj/job", "--replicas=2")
        trains(kube, 2, status["attempt"])
        assert nodes_of(kube, 2) == [SAFE, SAFE]


@LONG
def test_on_demand_workers_wait_for_on_demand_nodes(kube: Kube) -> None:
    with spot_nodes(kube):
        kube.apply(mixed(3, on_demand=3))
        # The on-demand node fits two workers. Spot nodes have free GPUs, but not for the third worker.
        status = trains(kube, 2)
        assert nodes_of(kube, 2) == [SAFE, SAFE]
        kube.until(
            lambda: "node affinity" in kube.condition("job", "Resizing").get("message", ""),
            60,
            "the scheduler's message",
        )
        assert counts(status) == (0, 0, 1)
