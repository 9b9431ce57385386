"""The life of a job: start, completion, suspension, resume, deletion."""

import time

import pytest

from dev.demo.commands import DemoError
from tests.cluster.kube import Kube, job, main_container


def test_success(kube: Kube) -> None:
    kube.apply(job(replicas=3, script="exit 0"))
    kube.run("wait", "tj/job", "--for=condition=Complete", "--timeout=60s")
    status = kube.status("job")
    assert (status["phase"], status["ready"], status["attempt"]) == ("Complete", "3/3", 1)
    assert status["restarts"] == {"failures": 0, "disruptions": 0, "resizes": 0}
    assert status["observedGeneration"] == kube.get("tj", "job")["metadata"]["generation"]
    assert len(kube.pods("job")) == 3, "cleanPods Running keeps the pods that have ended, and their logs"
    assert "Complete" in kube.run("get", "tj")
    service = kube.get("service", "job")["spec"]
    assert (service["clusterIP"], service["publishNotReadyAddresses"]) == ("None", True)


def test_status_reports_exit_code_and_message_of_failure(kube: Kube) -> None:
    kube.apply(job(script="echo cannot find the data >&2; exit 3", recovery={"maxRestarts": 1}))
    status = kube.wait_phase("job", "Failed")
    failure, failed = status["lastFailure"], kube.condition("job", "Failed")
    assert (failure["exitCode"], failure["reason"]) == (3, "Error")
    assert failure["message"] == "the command exited with code 3: cannot find the data\ncannot find the data"
    assert failure["node"].startswith("node")
    assert (failure["attempt"], failure["pod"].rpartition("-")[0]) == (2, f"job-worker-{failure['rank']}")
    assert "cannot find the data" in kube.run("logs", failure["pod"]), "its log is there to be read"
    assert failed["reason"] == "RestartsExhausted"
    assert "exit code 3" in failed["message"]
    assert "cannot find the data" in failed["message"]
    assert status["restarts"]["failures"] == 2, "the one that was restarted and the one that was not"


def test_success_policy_can_follow_worker_0_alone(kube: Kube) -> None:
    script = '[ "$TRAINYARD_REPLICA_INDEX" = 0 ] && exit 0; sleep 600'
    kube.apply(job(script=script, lifecycle={"success": "Worker0"}))
    kube.wait_phase("job", "Complete")
    kube.until(
        lambda: [p["status"]["phase"] for p in kube.pods("job")] == ["Succeeded"], 30, "the running pod to be deleted"
    )


def test_suspend_and_resume(kube: Kube) -> None:
    kube.apply(job())
    kube.wait_phase("job", "Running")
    kube.run("patch", "tj", "job", "--type=merge", "-p", '{"spec":{"lifecycle":{"suspend":true}}}')
    kube.wait_phase("job", "Suspended")
    kube.until(lambda: not kube.pods("job"), 30, "the pods to be deleted")
    assert kube.condition("job", "Suspended")["status"] == "True"
    kube.run("patch", "tj", "job", "--type=merge", "-p", '{"spec":{"lifecycle":{"suspend":false}}}')
    status = kube.wait_phase("job", "Running")
    assert status["attempt"] == 2
    assert status["restarts"] == {"failures": 0, "disruptions": 0, "resizes": 0}
    assert kube.condition("job", "Suspended")["status"] == "False"


def test_suspended_new_job_creates_no_pods(kube: Kube) -> None:
    kube.apply(job(lifecycle={"suspend": True}))
    kube.wait_phase("job", "Suspended")
    assert kube.pods("job") == []
    assert "startTime" not in kube.status("job")


def test_deadline_does_not_count_suspended_time(kube: Kube) -> None:
    kube.apply(job(lifecycle={"activeDeadlineSeconds": 8}))
    kube.wait_phase("job", "Running")
    kube.run("patch", "tj", "job", "--type=merge", "-p", '{"spec":{"lifecycle":{"suspend":true}}}')
    kube.wait_phase("job", "Suspended")
    time.sleep(9)
    assert kube.phase("job") == "Suspended"
    kube.run("patch", "tj", "job", "--type=merge", "-p", '{"spec":{"lifecycle":{"suspend":false}}}')
    kube.wait_phase("job", "Running")
    kube.wait_phase("job", "Failed", 30)
    failed = kube.condition("job", "Failed")
    assert failed["reason"] == "DeadlineExceeded"
    assert "activeDeadlineSeconds" in failed["message"]
    kube.until(
        lambda: [p["status"]["phase"] for p in kube.pods("job")] == ["Failed", "Failed"], 60, "the pods to be stopped"
    )


def test_ttl_deletes_the_job_and_its_dependents(kube: Kube) -> None:
    kube.apply(job(script="exit 0", lifecycle={"ttlSecondsAfterFinished": 1}))
    kube.until(lambda: kube.find("tj", "job") is None, 60, "the job to be deleted")
    kube.until(
        lambda: not kube.pods("job") and kube.find("service", "job") is None, 30, "pods and Service to be deleted"
    )


@pytest.mark.parametrize(("policy", "left"), [("All", 0), ("None", 2)])
def test_clean_pods(kube: Kube, policy: str, left: int) -> None:
    script = '[ "$TRAINYARD_REPLICA_INDEX" = 0 ] && exit 0; sleep 600'
    kube.apply(job(script=script, lifecycle={"cleanPods": policy, "success": "Worker0"}))
    kube.wait_phase("job", "Complete")
    kube.until(lambda: len(kube.pods("job")) == left, 30, f"{left} pods to be left")


@pytest.mark.parametrize("phase", ["Pending", "Running", "Restarting", "Suspended", "Complete", "Failed"])
def test_deletion_in_every_phase_leaves_nothing(kube: Kube, phase: str) -> None:
    manifest = job(replicas=3, script="exit 0") if phase == "Complete" else job(replicas=3)
    if phase == "Pending":
        main_container(manifest)["resources"]["requests"]["cpu"] = "900"
    if phase == "Failed":
        manifest = job(replicas=3, script="exit 1", recovery={"maxRestarts": 0})
    kube.apply(manifest)
    if phase == "Restarting":
        kube.wait_phase("job", "Running")
        kube.delete_pod("job-worker-1-1")
    if phase == "Suspended":
        kube.wait_phase("job", "Running")
        kube.run("patch", "tj", "job", "--type=merge", "-p", '{"spec":{"lifecycle":{"suspend":true}}}')
    kube.wait_phase("job", phase)
    kube.run("delete", "tj", "job", "--timeout=30s")
    kube.until(lambda: not kube.pods("job") and kube.find("service", "job") is None, 30, "all objects to be deleted")


def test_new_job_adopts_nothing_of_its_namesake(kube: Kube) -> None:
    kube.apply(job())
    kube.wait_phase("job", "Running")
    old = {p["metadata"]["uid"] for p in kube.pods("job")}
    kube.run("delete", "tj", "job", "--wait=false")
    kube.run("wait", "tj/job", "--for=delete", "--timeout=30s")
    kube.apply(job())
    status = kube.wait_phase("job", "Running")
    uid = kube.get("tj", "job")["metadata"]["uid"]
    pods = kube.pods("job")
    assert len(pods) == 2
    assert not old & {p["metadata"]["uid"] for p in pods}
    assert {p["metadata"]["ownerReferences"][0]["uid"] for p in pods} == {uid}
    assert kube.get("service", "job")["metadata"]["ownerReferences"][0]["uid"] == uid
    assert status["restarts"] == {"failures": 0, "disruptions": 0, "resizes": 0}


def test_applying_twice_changes_nothing(kube: Kube) -> None:
    manifest = job()
    kube.apply(manifest)
    kube.wait_phase("job", "Running")
    time.sleep(2)
    before, pods = kube.get("tj", "job"), kube.pods("job")
    assert "unchanged" in kube.apply(manifest)
    time.sleep(2)
    assert kube.get("tj", "job")["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"], (
        "not one write"
    )
    assert [p["metadata"]["uid"] for p in kube.pods("job")] == [p["metadata"]["uid"] for p in pods]


def test_namespace_with_running_job_can_be_deleted(kube: Kube) -> None:
    kube.apply(job(replicas=3))
    kube.wait_phase("job", "Running")
    kube.run("delete", "namespace", kube.namespace, "--timeout=60s")


def test_a_finished_job_stays_finished(kube: Kube) -> None:
    kube.apply(job(script="exit 0"))
    kube.wait_phase("job", "Complete")
    for pod in kube.pods("job"):
        kube.delete_pod(pod["metadata"]["name"])
    kube.run("delete", "service", "job")
    with pytest.raises(DemoError, match="the job is finished; delete it and create it again"):
        kube.run("scale", "tj/job", "--replicas=4")
    kube.run("patch", "tj", "job", "--type=merge", "-p", '{"spec":{"lifecycle":{"ttlSecondsAfterFinished":600}}}')
    time.sleep(3)
    assert kube.phase("job") == "Complete"
    assert kube.pods("job") == []
    assert kube.find("service", "job") is None


def test_scale_restarts_the_group_with_the_new_size(kube: Kube) -> None:
    kube.apply(job())
    kube.wait_phase("job", "Running")
    kube.run("scale", "tj/job", "--replicas=3")
    kube.until(lambda: kube.status("job")["ready"] == "3/3" and kube.phase("job") == "Running", 60, "three workers")
    status = kube.status("job")
    assert (status["attempt"], status["restarts"]) == (2, {"failures": 0, "disruptions": 0, "resizes": 1})


def test_job_managed_by_another_controller_is_ignored(kube: Kube) -> None:
    kube.apply(job(managedBy="example.com/other"))
    time.sleep(3)
    found = kube.get("tj", "job")
    assert "status" not in found
    assert [m["manager"] for m in found["metadata"]["managedFields"]] == ["kubectl-client-side-apply"]
    assert kube.pods("job") == []
    assert kube.find("service", "job") is None
