"""Groups that the scheduler places pod by pod: two of them may each hold what the other waits for."""

from tests.cluster.elastic_group import GPUS, closed, counts
from tests.cluster.kube import Json, Kube, job, main_container, train_on_cpus

MEET = "import torch.distributed as group; group.init_process_group('gloo')"
"""Needs all workers."""
TAINT = "example.com/second"


def group(name: str, **template: object) -> Json:
    """Return a job that needs two whole nodes, and gives one back after five seconds."""
    manifest = job(name, replicas=2, framework="torch", processesPerReplica=1, scheduling={"partialTimeoutSeconds": 5})
    main_container(manifest)["command"] = ["python3", "-c", MEET]
    main_container(manifest)["resources"]["limits"] = {"nvidia.com/gpu": GPUS}
    manifest["spec"]["template"]["spec"] |= template
    return train_on_cpus(manifest)


def test_two_groups_with_half_the_nodes_finish(kube: Kube) -> None:
    with closed(kube, "node3"):
        kube.run("taint", "node", "node2", f"{TAINT}=true:NoSchedule")
        try:
            kube.apply(group("first"))
            kube.until(lambda: nodes(kube, "first") == ["node1"], 30, "the first group to get one node")
            kube.apply(group("second", tolerations=[{"key": TAINT, "operator": "Exists"}]))
            kube.until(lambda: nodes(kube, "second") == ["node2"], 30, "the second group to get the other one")
        finally:
            kube.run("taint", "node", "node2", f"{TAINT}=true:NoSchedule-")
        for name in ("first", "second"):
            status = kube.wait_phase(name, "Complete", 150)
            assert counts(status) == (0, 0, 0)
    events = kube.run("get", "events", "--field-selector", "reason=PartiallyScheduled")
    assert "1 of 2 workers held a node, and for 5 seconds" in events


def nodes(kube: Kube, name: str) -> list[str]:
    """Return the nodes of a job's pods that have one."""
    return sorted(pod["spec"]["nodeName"] for pod in kube.pods(name) if "nodeName" in pod["spec"])
