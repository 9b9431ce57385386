"""Pods that cannot be created, scheduled or started: the status names the cause, nothing loops, other jobs finish."""

from typing import Any

import pytest

from tests.cluster.kube import Json, Kube, job, main_container

SOON = 10
"""Seconds until a job reports what the API server or the scheduler has reported about it. Nodes take longer."""


def running_reason(kube: Kube, reason: str, *words: str, name: str = "job", seconds: float = 30) -> None:
    kube.until(lambda: kube.condition(name, "Running").get("reason") == reason, seconds, f"the reason {reason}")
    message = kube.condition(name, "Running")["message"]
    for word in words:
        assert word in message


@pytest.fixture(autouse=True)
def another_job_finishes(kube: Kube) -> Any:
    """Another job of the namespace finishes."""
    yield
    for quota in kube.find_all("resourcequota"):
        kube.run("delete", "resourcequota", quota["metadata"]["name"])
    kube.apply(job("neighbour", script="exit 0"))
    kube.wait_phase("neighbour", "Complete")


def test_unpullable_image_is_reported(kube: Kube) -> None:
    manifest = job()
    main_container(manifest)["image"] = "localhost/no/such:image"
    kube.apply(manifest)
    running_reason(kube, "ImagePullFailed", "job-worker-", "localhost/no/such:image")
    assert {w["name"] for w in kube.status("job").get("workers", [])} <= {"job-worker-0-1", "job-worker-1-1"}
    assert kube.status("job")["attempt"] == 1


def test_unpullable_image_fails_the_job_at_startup_deadline(kube: Kube) -> None:
    # Before its node has tried, the fault is unknown.
    manifest = job(lifecycle={"startupDeadlineSeconds": 20})
    main_container(manifest)["image"] = "localhost/no/such:image"
    kube.apply(manifest)
    kube.until(lambda: len(kube.pods("job")) == 2, 10, "its pods")
    before = kube.uids("job")
    status = kube.wait_phase("job", "Failed", 40)
    failed = kube.condition("job", "Failed")
    assert failed["reason"] == "StartupDeadlineExceeded"
    assert "localhost/no/such:image" in failed["message"]
    assert (status["attempt"], status["restarts"]["failures"]) == (1, 0)
    created = [event for event in kube.find_all("events") if event["reason"] == "Scheduled"]
    assert {event["involvedObject"]["uid"] for event in created} == {*before.values()}, "no other pod was created"
    kube.until(
        lambda: all(pod["status"]["phase"] == "Failed" for pod in kube.pods("job")),
        60,
        "the pods that wait for the image to be stopped",
    )


def test_missing_config_map_is_reported(kube: Kube) -> None:
    manifest = job()
    main_container(manifest)["envFrom"] = [{"configMapRef": {"name": "missing"}}]
    kube.apply(manifest)
    running_reason(kube, "ContainerCreateFailed", 'configmap "missing" not found')


def test_unschedulable_pod_is_reported(kube: Kube) -> None:
    manifest = job()
    main_container(manifest)["resources"] = {"limits": {"nvidia.com/gpu": "9"}}
    kube.apply(manifest)
    running_reason(kube, "Unschedulable", "Insufficient nvidia.com/gpu", seconds=SOON)
    assert kube.condition("job", "Scheduled") | {"reason": "Unschedulable", "status": "False"} == kube.condition(
        "job", "Scheduled"
    )


def test_the_startup_deadline_ends_the_wait(kube: Kube) -> None:
    manifest = job(lifecycle={"startupDeadlineSeconds": 3})
    main_container(manifest)["resources"] = {"limits": {"nvidia.com/gpu": "9"}}
    kube.apply(manifest)
    kube.wait_phase("job", "Failed", 30)
    failed = kube.condition("job", "Failed")
    assert failed["reason"] == "StartupDeadlineExceeded"
    assert "Insufficient nvidia.com/gpu" in failed["message"]


def test_exceeded_quota_delays_job_until_it_is_lifted(kube: Kube) -> None:
    kube.apply(_quota("1"))
    kube.until(lambda: kube.get("resourcequota", "small").get("status", {}).get("hard"), 10, "the quota to count")
    kube.apply(job(replicas=3, script="exit 0"))
    running_reason(kube, "QuotaExceeded", "exceeded quota: small", seconds=SOON)
    kube.run("delete", "resourcequota", "small")
    kube.wait_phase("job", "Complete", 60)
    assert kube.status("job")["restarts"]["failures"] == 0


def test_pod_rejected_by_its_node_backs_off(kube: Kube) -> None:
    manifest = job(lifecycle={"startupDeadlineSeconds": 600})
    main_container(manifest)["resources"] = {"limits": {"nvidia.com/gpu": "8"}}
    # Past the scheduler: the second pod finds no free device and the kubelet refuses it.
    manifest["spec"]["template"]["spec"]["nodeName"] = "node1"
    kube.apply(manifest)
    kube.until(lambda: kube.status("job").get("restarts", {}).get("disruptions", 0) >= 1, 30, "the refusal to be seen")
    restarting = kube.condition("job", "Restarting")
    assert restarting["reason"] == "AdmissionRejected"
    assert "was rejected by its node" in restarting["message"]
    assert "nvidia.com/gpu" in restarting["message"]
    assert kube.status("job")["restarts"]["failures"] == 0
    # The delay grows: 0, 2, 4, 8 seconds. Without it there would be tens of attempts by now.
    kube.until(lambda: kube.status("job")["internal"]["backoff"]["count"] >= 3, 60, "three attempts")
    assert kube.status("job")["attempt"] <= 5


def test_invalid_template_fails_the_job(kube: Kube) -> None:
    manifest = job()
    main_container(manifest)["resources"] = {"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}
    kube.apply(manifest)
    kube.wait_phase("job", "Failed")
    failed = kube.condition("job", "Failed")
    assert failed["reason"] == "InvalidTemplate"
    assert "must be less than or equal to cpu limit" in failed["message"]


def test_pod_forbidden_by_pod_security_is_reported(kube: Kube) -> None:
    kube.run("label", "namespace", kube.namespace, "pod-security.kubernetes.io/enforce=restricted")
    kube.apply(job())
    running_reason(kube, "PodsForbidden", "violates PodSecurity")
    kube.run("label", "namespace", kube.namespace, "pod-security.kubernetes.io/enforce-")


def test_foreign_service_with_the_jobs_name_is_reported(kube: Kube) -> None:
    kube.run("create", "service", "clusterip", "job", "--tcp=80")
    kube.apply(job())
    running_reason(kube, "NameConflict", "Service job exists and does not belong to this TrainingJob")
    assert kube.pods("job") == [], "no pods before their Service"
    kube.run("delete", "service", "job")
    kube.wait_phase("job", "Running")


def _quota(pods: str) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "small"},
        "spec": {"hard": {"pods": pods}},
    }
