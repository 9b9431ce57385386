"""Workers compare their nodes before training: a node with a slow cable, or slow processors, is left before the first step."""

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from tests.cluster.elastic_group import LONG
from tests.cluster.kube import Json, Kube, job, main_container, train_on_cpus
from tests.cluster.slow_node import slow_cable, slow_processors

STEP = """
import time
import torch.distributed as group
from trainyard_agent import progress
group.init_process_group("gloo")
for step in range(1, 11):
    group.barrier()
    time.sleep(0.3)
    progress(step)
"""


def spread(name: str) -> Json:
    """Return a job with a worker on each node, as long as all nodes may be used."""
    manifest = job(name, replicas=3, framework="torch", processesPerReplica=1, health={"preflight": "quick"})
    main_container(manifest)["command"] = ["python3", "-c", STEP]
    main_container(manifest)["resources"]["limits"] = {"nvidia.com/gpu": 1}
    manifest["spec"]["template"]["spec"]["topologySpreadConstraints"] = [
        {
            "maxSkew": 1,
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": {"trainyard.dev/job-name": name}},
        }
    ]
    return train_on_cpus(manifest)


def nodes(kube: Kube, name: str) -> dict[str, str]:
    """Return the index of the worker on each node."""
    placed = [pod for pod in kube.pods(name) if "nodeName" in pod["spec"]]
    return {pod["spec"]["nodeName"]: pod["metadata"]["labels"]["trainyard.dev/index"] for pod in placed}


@pytest.mark.parametrize(
    ("plant", "what"),
    [
        pytest.param(slow_cable, "all links of worker {} are slow", id="cable"),
        pytest.param(slow_processors, "a matrix product of worker {} takes", id="processors", marks=LONG),
    ],
)
def test_slow_node_is_left_before_training(
    kube: Kube, plant: Callable[[str], AbstractContextManager[None]], what: str
) -> None:
    with plant("node2"):
        kube.apply(spread("compared"))
        kube.until(lambda: len(nodes(kube, "compared")) == 3, 60, "a worker on each node")
        slow = nodes(kube, "compared")["node2"]
        status = kube.wait_phase("compared", "Complete", 180)
    assert status["attempt"] == 2
    assert status["restarts"]["failures"] == 0
    assert f"SlowNodeError: {what.format(slow)}" in kube.run("get", "events", "--field-selector", "reason=WorkerFailed")
    assert [(node["name"], node["avoidance"]) for node in status["suspectNodes"]] == [("node2", "Required")]
    assert status["goodput"]["lostSeconds"]["preflight"] > 0


def test_healthy_nodes_train_at_once(kube: Kube) -> None:
    kube.apply(spread("healthy"))
    status = kube.wait_phase("healthy", "Complete", 120)
    assert status["attempt"] == 1
    assert "suspectNodes" not in status
    assert 0 < status["goodput"]["lostSeconds"]["preflight"] < 20
