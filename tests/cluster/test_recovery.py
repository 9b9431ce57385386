"""Workers that fail, are disrupted, or fail together: one more attempt, counted once, for the right reason."""

import json

import pytest

from dev.demo import install
from dev.demo.commands import show
from dev.demo.target import python
from tests.cluster.kube import Json, Kube, job

NONE = {"failures": 0, "disruptions": 0, "resizes": 0}


def attempt_2_runs(kube: Kube, *new: int) -> Json:
    """Return the status once attempt 2 runs: with new pods for these workers alone, or for all."""
    kube.until(
        lambda: kube.status("job").get("attempt") == 2 and kube.phase("job") == "Running", 60, "attempt 2 to run"
    )
    workers = range(kube.get("tj", "job")["spec"]["replicas"])
    desired = {f"job-worker-{index}-{2 if index in (new or workers) else 1}" for index in workers}
    kube.until(lambda: kube.uids("job").keys() == desired, 30, f"the pods to be {desired}")
    return kube.status("job")


def test_a_worker_killed_restarts_the_whole_group(kube: Kube) -> None:
    kube.apply(job(replicas=3, recovery={"minRestartScope": "Group"}))
    kube.wait_phase("job", "Running")
    kube.kill_main("job-worker-1-1")
    status = attempt_2_runs(kube)
    assert status["restarts"] == NONE | {"failures": 1}
    assert (status["lastFailure"]["rank"], status["lastFailure"]["exitCode"]) == (1, 7)
    assert "WorkerFailed" in kube.run("get", "events")
    described = kube.run("describe", "tj", "job")
    assert "worker 1 of attempt 1" in described


def test_two_simultaneous_failures_count_once(kube: Kube) -> None:
    kube.apply(job(replicas=3, recovery={"agent": "none"}))
    kube.wait_phase("job", "Running")
    kube.kill_main("job-worker-1-1")
    kube.kill_main("job-worker-2-1")
    assert attempt_2_runs(kube)["restarts"] == NONE | {"failures": 1}


@pytest.mark.parametrize("more", [[], ["--force", "--grace-period=0"]], ids=["gracefully", "by force"])
def test_a_deleted_pod_is_a_disruption_and_free(kube: Kube, more: list[str]) -> None:
    kube.apply(job(replicas=3, recovery={"maxRestarts": 0}))
    kube.wait_phase("job", "Running")
    kube.delete_pod("job-worker-2-1", *more)
    status = attempt_2_runs(kube, 2)
    assert status["restarts"] == NONE | {"disruptions": 1}
    assert "lastFailure" not in status


def test_an_evicted_pod_is_a_disruption_and_free(kube: Kube) -> None:
    kube.apply(job(recovery={"maxRestarts": 0}))
    kube.wait_phase("job", "Running")
    eviction = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": "job-worker-0-1", "namespace": kube.namespace},
    }
    path = f"/api/v1/namespaces/{kube.namespace}/pods/job-worker-0-1/eviction"
    kube.run("create", "--raw", path, "-f", "-", stdin=json.dumps(eviction))
    assert attempt_2_runs(kube, 0)["restarts"] == NONE | {"disruptions": 1}
    assert "EvictionByEvictionAPI" in kube.run("describe", "tj", "job")


def test_repeated_early_failures_back_off(kube: Kube) -> None:
    kube.apply(job(script="exit 1", recovery={"maxRestarts": 2}))
    status = kube.wait_phase("job", "Failed", 90)
    assert status["restarts"]["failures"] == 3
    assert status["internal"]["backoff"]["count"] == 2


UNWELL = 'test "$TRAINYARD_ATTEMPT/$TRAINYARD_REPLICA_INDEX" = 1/1 && exit 94; sleep 600 & wait'


def test_worker_reporting_unhealthy_node_moves_to_another(kube: Kube) -> None:
    kube.apply(job(replicas=3, script=UNWELL, recovery={"maxRestarts": 0}))
    kube.until(lambda: kube.status("job").get("attempt") == 2 and kube.phase("job") == "Running", 60, "attempt 2")
    kube.until(lambda: len(kube.pods("job")) == 3, 30, "the old pods to be gone")
    status = kube.status("job")
    assert status["restarts"] == NONE | {"disruptions": 1}
    (node,) = status["suspectNodes"]
    assert (node["avoidance"], node["reason"]) == ("Required", "exit code 94")
    assert node["name"] not in {pod["spec"]["nodeName"] for pod in kube.pods("job")}
    assert f"node {node['name']} is avoided for 24 hours" in kube.run("get", "events")


def test_job_avoiding_all_its_nodes_can_be_released(kube: Kube) -> None:
    manifest = job(replicas=2, script=UNWELL)
    manifest["spec"]["template"]["spec"]["nodeSelector"] = {"kubernetes.io/hostname": "node2"}
    kube.apply(manifest)
    message = "this job avoids node2"
    kube.until(
        lambda: message in kube.condition("job", "Scheduled").get("message", ""), 60, "the job to say why it waits"
    )
    kube.run("patch", "tj", "job", "--type=merge", "-p", '{"spec": {"recovery": {"avoidNodes": false}}}')
    kube.until(lambda: kube.phase("job") == "Running", 60, "the job to run on node2")
    status = kube.status("job")
    assert (status["attempt"], status["restarts"]) == (3, NONE | {"disruptions": 1})
    assert "NodesReleased" in kube.run("get", "events")


def test_lost_node_restarts_group_and_moves_leader(kube: Kube) -> None:
    """Its pod stays Terminating until it is deleted by force; the job must not wait for it. The leader ran on that node, too."""
    manifest = job(replicas=3, recovery={"maxRestarts": 0, "forceDeleteAfterSeconds": 20})
    spread = {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway"}
    selector = {"labelSelector": {"matchLabels": {"trainyard.dev/job-name": "job"}}}
    manifest["spec"]["template"]["spec"]["topologySpreadConstraints"] = [spread | selector]
    kube.apply(manifest)
    kube.wait_phase("job", "Running")
    home = kube.other(install.NAMESPACE)
    number = home.get("pod", home.leader())["spec"]["nodeName"].removeprefix("node")
    assert any(p["spec"]["nodeName"] == f"node{number}" for p in kube.pods("job"))
    show([*python("dev.localcluster"), "node", "stop", number])
    try:
        kube.until(
            lambda: kube.status("job")["attempt"] == 2 and kube.phase("job") == "Running", 180, "attempt 2 to run"
        )
        assert kube.status("job")["restarts"] == NONE | {"disruptions": 1}
        new = [p for p in kube.pods("job") if p["metadata"]["labels"]["trainyard.dev/attempt"] == "2"]
        assert {p["spec"]["nodeName"] for p in new} <= {"node1", "node2", "node3"} - {f"node{number}"}
        kube.until(lambda: len(kube.pods("job")) == 3, 120, "the pod of the dead node to be removed")
        kube.until(lambda: "ForcedDeletion" in kube.run("get", "events"), 10, "the event ForcedDeletion")
    finally:
        show([*python("dev.localcluster"), "node", "start", number])
    assert kube.status("job")["attempt"] == 2
