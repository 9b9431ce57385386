"""Groups that scale up and down on a real cluster: by hand, by a quota, and by cordoned nodes."""

import os
import re
import signal
import time
from contextlib import ExitStack

import yaml

from dev.demo.commands import show
from dev.demo.target import ROOT, python
from tests.cluster.elastic_group import LONG, a_node_each, closed, counts, newest, training, trains
from tests.cluster.failing_training import fail
from tests.cluster.kube import Kube, main_container, processes


def test_scaling_by_hand_restarts_processes_in_place(kube: Kube) -> None:
    kube.apply(training(4, {"maxReplicas": 6, "multipleOf": 2}))
    before = trains(kube, 4)
    assert before["attempt"] == 1
    for attempt, size in enumerate((2, 4, 6), start=2):
        kube.run("scale", "tj/job", f"--replicas={size}")
        assert trains(kube, size, attempt - 1)["attempt"] == attempt
    status = kube.status("job")
    assert counts(status) == (0, 0, 3)
    assert kube.uids("job").keys() == {
        *("job-worker-0-1", "job-worker-1-1", "job-worker-2-2", "job-worker-3-2", "job-worker-4-3", "job-worker-5-3")
    }
    output = kube.run("exec", "job-worker-0-1", "-c", "main", "--", "sh", "-c", "cat /proc/*/environ | tr '\\0' '\\n'")
    assert "TRAINYARD_PREVIOUS_WORLD_SIZE=4" in output
    kube.run("scale", "tj/job", "--replicas=5")
    kube.until(lambda: kube.condition("job", "ScalingLimited").get("status") == "True", 30, "the condition")
    assert "replicas is 5, and elastic.multipleOf is 2: the group has 4 workers" in kube.run("describe", "tj", "job")
    assert "but elastic allows" in kube.refused("scale", "tj/job", "--replicas=8")
    assert counts(trains(kube, 4, 4)) == (0, 0, 4)


def test_group_shrinks_for_cordoned_node_and_grows_back(kube: Kube) -> None:
    kube.apply(a_node_each(training(3, {"maxReplicas": 3})))
    # Pods of an earlier test may still hold GPUs: then the group starts smaller.
    before = trains(kube, 3)
    pod = newest(kube, 1)
    with closed(kube, pod["spec"]["nodeName"]):
        kube.delete_pod(pod["metadata"]["name"])
        status = trains(kube, 2, before["attempt"])
        assert counts(status, before) == (0, 1, 1)
        events = kube.run("get", "events")
        assert "not all 3 workers were scheduled within 5 seconds" in events
        kube.until(
            lambda: "Insufficient" in kube.condition("job", "Resizing").get("message", ""), 60, "workers to join"
        )
        assert kube.status("job")["ready"] == "2/3"
    status = trains(kube, 3, status["attempt"])
    assert counts(status, before) == (0, 1, 2)
    assert kube.condition("job", "Resizing")["status"] == "False"


@LONG
def test_group_shrinks_for_lost_node_and_grows_back(kube: Kube) -> None:
    kube.apply(a_node_each(training(3, {"maxReplicas": 3})))
    before = trains(kube, 3)
    number = newest(kube, 1)["spec"]["nodeName"].removeprefix("node")
    show([*python("dev.localcluster"), "node", "stop", number])
    try:
        status = trains(kube, 2, before["attempt"], 180)
        assert counts(status, before) == (0, 1, 1)
    finally:
        show([*python("dev.localcluster"), "node", "start", number])
    assert counts(trains(kube, 3, status["attempt"], 180), before) == (0, 1, 2)


def allow(kube: Kube, pods: int) -> None:
    """Limit the pods of the namespace."""
    hard = {"hard": {"pods": str(pods)}}
    kube.apply({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "pods"}, "spec": hard})


def test_group_starts_small_under_quota_and_grows_later(kube: Kube) -> None:
    allow(kube, 2)
    kube.apply(training(4, {"maxReplicas": 4, "multipleOf": 2}))
    status = trains(kube, 2)
    assert counts(status) == (0, 0, 1)
    allow(kube, 10)
    assert counts(trains(kube, 4, status["attempt"])) == (0, 0, 2)


@LONG
def test_nodes_added_one_by_one_cause_one_resize(kube: Kube) -> None:
    allow(kube, 2)
    # Pods that a quota has refused are asked for again after a quarter of a minute.
    kube.apply(training(4, {"maxReplicas": 4, "shrinkAfterSeconds": 60}))
    status = trains(kube, 2)
    allow(kube, 3)
    kube.until(
        lambda: "readySince" in kube.status("job")["internal"].get("joining", {}),
        60,
        "the first that joins to be ready",
    )
    assert kube.status("job")["attempt"] == status["attempt"]
    allow(kube, 10)
    assert counts(trains(kube, 4, status["attempt"])) == (0, 0, 2)


def test_failure_during_scale_up_and_resize_during_recovery(kube: Kube) -> None:
    kube.apply(training(2, {"maxReplicas": 6}))
    trains(kube, 2)
    # With free capacity the group could have scaled up before the fault.
    with ExitStack() as full:
        for node in kube.run("get", "nodes", "--output=name").split():
            full.enter_context(closed(kube, node))
        kube.run("scale", "tj/job", "--replicas=3")
        kube.until(lambda: kube.condition("job", "Resizing").get("status") == "True", 30, "workers to join")
        fail(kube, "job-worker-1-1")
        assert counts(trains(kube, 2, 1)) == (1, 0, 0)
    status = trains(kube, 3, 2)
    assert counts(status) == (1, 0, 1)
    kube.delete_pod("job-worker-2-1")
    kube.run("scale", "tj/job", "--replicas=2")
    status = trains(kube, 2, status["attempt"])
    assert (status["restarts"]["failures"], status["restarts"]["resizes"]) == (1, 2)


@LONG
def test_elastic_example_resumes_at_its_last_step(kube: Kube) -> None:
    def begun(rank: int, size: int) -> int:
        """Return the step after which the rank resumed."""

        def reported() -> bool:
            status = kube.status("job")
            workers = status.get("internal", {}).get("group", {}).get("size", 2)
            return (status.get("goodput", {}).get("attempt"), workers) == (status.get("attempt"), size)

        kube.until(reported, 120, f"steps of {size} ranks")
        line = re.compile(rf"rank {rank} of {size} resumes after step (\d+)")
        return int(line.findall(kube.run("logs", f"job-worker-{rank}-1"))[-1])

    manifest = yaml.safe_load((ROOT / "examples/elastic/job.yaml").read_text())
    manifest["metadata"]["name"] = "job"
    kube.apply(manifest)
    begun(1, 2)
    before = kube.status("job")["progress"]["step"]
    kube.run("scale", "tj/job", "--replicas=4")
    grown = begun(3, 4)
    assert grown >= before
    kube.run("scale", "tj/job", "--replicas=1")
    assert begun(0, 1) > grown
    assert counts(kube.status("job")) == (0, 0, 2)


@LONG
def test_oscillating_requests_cause_few_restarts(kube: Kube) -> None:
    kube.apply(training(4, {"maxReplicas": 4, "growAfterSeconds": 20}))
    trains(kube, 4)
    began = time.monotonic()
    for turn in range(60):
        kube.run("scale", "tj/job", f"--replicas={(2, 4)[turn % 2]}")
        time.sleep(max(0.0, began + turn + 1 - time.monotonic()))
    kube.run("scale", "tj/job", "--replicas=4")
    status = trains(kube, 4)
    failures, disruptions, resizes = counts(status)
    assert (failures, disruptions) == (0, 0)
    # At most one scale-down and one scale-up in each twenty seconds.
    assert resizes <= 8


@LONG
def test_without_agent_torchrun_continues_with_remaining_workers(kube: Kube) -> None:
    manifest = training(3, {"minReplicas": 2, "maxReplicas": 3}, recovery={"agent": "none"})
    main_container(manifest)["command"] = ["sh", "-c", f"exec torchrun --no-python python3 -c '{TORCHRUN}'"]
    kube.apply(manifest)
    kube.wait_phase("job", "Running", 120)
    kube.until(lambda: "one of 3" in kube.run("logs", "job-worker-0-1"), 120, "all three to meet")
    before = kube.uids("job")
    # On SIGTERM, torchrun closes the rendezvous of all workers.
    for pid in processes(kube.get("pod", "job-worker-2-1"), "python"):
        os.kill(pid, signal.SIGKILL)
    kube.until(lambda: kube.run("logs", "job-worker-0-1").count("one of 3") >= 2, 180, "three to meet again")
    after = kube.uids("job")
    assert after.keys() == {"job-worker-0-1", "job-worker-1-1", "job-worker-2-2"}
    assert [after[f"job-worker-{index}-1"] for index in (0, 1)] == [before[f"job-worker-{index}-1"] for index in (0, 1)]
    assert counts(kube.status("job")) == (1, 0, 0)


@LONG
def test_without_agent_new_worker_joins_a_single_one(kube: Kube) -> None:
    manifest = training(1, {"maxReplicas": 2}, recovery={"agent": "none"})
    main_container(manifest)["command"] = ["sh", "-c", f"exec torchrun --no-python python3 -c '{TORCHRUN}'"]
    kube.apply(manifest)
    kube.wait_phase("job", "Running", 120)
    kube.until(lambda: "one of 1" in kube.run("logs", "job-worker-0-1"), 120, "it to train alone")
    before = kube.uids("job")
    kube.run("scale", "tj/job", "--replicas=2")
    kube.until(lambda: "one of 2" in kube.run("logs", "job-worker-0-1"), 180, "both to meet")
    assert kube.uids("job")["job-worker-0-1"] == before["job-worker-0-1"]
    assert kube.condition("job", "Stalled").get("status") != "True"


TORCHRUN = """
import time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
print(f"one of {dist.get_world_size()}", flush=True)
while True:
    dist.all_reduce(torch.ones(1))
    time.sleep(0.1)
"""
