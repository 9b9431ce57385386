"""Jobs in queues of the real Kueue: what it decides, and what the operator makes of it. Pods run as soon as they are there."""

import os

import pytest

from tests.api.kueue import READY_SECONDS, Crew, Queues, finish, submit, until_free
from tests.api.nodes import Namespace
from tests.support.polling import until

LONG = bool(os.environ.get("LONG"))
MANY = 200 if LONG else 40


@pytest.fixture
def lab(queue_lab: Namespace) -> Namespace:
    return queue_lab


@pytest.mark.usefixtures("crew")
def test_admitted_job_runs_on_nodes_of_its_flavor(lab: Namespace, queues: Queues) -> None:
    queues.queue("plain", "4")
    submit(lab, "first", "plain", priority="low")
    lab.until_phase("Running", "first")
    pods = lab.pods("first").values()
    assert [pod["spec"]["nodeSelector"] for pod in pods] == [{"pool": "gpu"}] * 2
    assert all({"key": "gpu", "operator": "Exists", "effect": "NoSchedule"} in p["spec"]["tolerations"] for p in pods)
    assert {pod["metadata"]["labels"]["kueue.x-k8s.io/podset"] for pod in pods} == {"worker"}
    workload = queues.workload("first")
    assert (workload["spec"]["priority"], workload["spec"]["priorityClassRef"]["name"]) == (10, "low")
    until(lambda: queues.condition("first", "PodsReady").get("reason") == "Started", 10, "PodsReady")
    until(lambda: queues.used("plain") == "2", 10, "the quota to be in use")
    finish(lab, "first")
    until(lambda: queues.condition("first", "Finished").get("reason") == "Succeeded", 10, "the end of the Workload")
    until(lambda: "finalizers" not in queues.workload("first")["metadata"], 10, "no finalizer")
    until_free(queues, "plain")


@pytest.mark.usefixtures("crew")
def test_job_without_quota_waits_and_says_why(lab: Namespace, queues: Queues) -> None:
    queues.queue("narrow", "2")
    submit(lab, "first", "narrow")
    lab.until_phase("Running", "first")
    submit(lab, "second", "narrow")
    until(lambda: "insufficient unused quota" in lab.condition("Queued", "second").get("message", ""), 20, "the reason")
    status = lab.status("second")
    assert (status["phase"], status["reason"]) == ("Queued", "WaitingForQuota")
    assert "activeSince" not in status["internal"]
    assert not lab.pods("second")
    finish(lab, "first")
    lab.until_phase("Running", "second")
    assert lab.status("second")["attempt"] == 1
    assert lab.condition("Queued", "second")["reason"] == "Admitted"


@pytest.mark.usefixtures("crew")
def test_preempted_job_stops_and_comes_back(lab: Namespace, queues: Queues) -> None:
    queues.queue("contested", "2")
    submit(lab, "cheap", "contested", priority="low")
    lab.until_phase("Running", "cheap")
    submit(lab, "urgent", "contested", priority="high")
    lab.until_phase("Queued", "cheap")
    lab.until_phase("Running", "urgent")
    assert not lab.pods("cheap")
    assert any("Preempted" in note for note in lab.events("Evicted", "cheap"))
    assert queues.condition("cheap", "Requeued")["status"] == "True"
    finish(lab, "urgent")
    lab.until_phase("Running", "cheap")
    status = lab.status("cheap")
    assert (status["attempt"], status["restarts"]["failures"], status["restarts"]["disruptions"]) == (2, 0, 0)
    finish(lab, "cheap")
    until_free(queues, "contested")


@pytest.mark.usefixtures("crew")
def test_deactivated_workload_holds_its_job(lab: Namespace, queues: Queues) -> None:
    queues.queue("moody", "2")
    submit(lab, "swings", "moody")
    lab.until_phase("Running", "swings")
    queues.change_workload("swings", {"spec": {"active": False}})
    lab.until_phase("Queued", "swings")
    until_free(queues, "moody")
    assert lab.condition("Queued", "swings")["reason"] == "QueueDeactivated"
    queues.change_workload("swings", {"spec": {"active": True}})
    lab.until_phase("Running", "swings")


@pytest.mark.usefixtures("crew")
def test_suspended_job_gives_its_quota_back(lab: Namespace, queues: Queues) -> None:
    queues.queue("patient", "2")
    submit(lab, "patient-job", "patient")
    lab.until_phase("Running", "patient-job")
    name = queues.workload("patient-job")["metadata"]["name"]
    lab.change("patient-job", lifecycle={"suspend": True})
    lab.until_phase("Suspended", "patient-job")
    until_free(queues, "patient")
    lab.change("patient-job", lifecycle={"suspend": False})
    lab.until_phase("Running", "patient-job")
    assert queues.workload("patient-job")["metadata"]["name"] == name


@pytest.mark.usefixtures("crew")
def test_stopped_queue_drains_and_starts_again(lab: Namespace, queues: Queues) -> None:
    queues.queue("closing", "2")
    submit(lab, "drained", "closing")
    lab.until_phase("Running", "drained")
    queues.change("clusterqueues", "closing", {"spec": {"stopPolicy": "HoldAndDrain"}})
    lab.until_phase("Queued", "drained")
    until_free(queues, "closing")
    queues.change("clusterqueues", "closing", {"spec": {"stopPolicy": "None"}})
    lab.until_phase("Running", "drained")


@pytest.mark.usefixtures("crew")
def test_elastic_job_starts_with_admitted_workers(lab: Namespace, queues: Queues) -> None:
    queues.queue("partial", "3")
    submit(lab, "elastic", "partial", 4, elastic={"minReplicas": 1, "maxReplicas": 4})
    lab.until_phase("Running", "elastic")
    assert len(lab.pods("elastic")) == 3
    assert "the queue has admitted 3 workers" in lab.condition("ScalingLimited", "elastic")["message"]
    lab.scale("elastic", 2)
    submit(lab, "next", "partial", 1)
    lab.until_phase("Running", "next")
    lab.until_phase("Running", "elastic")
    assert lab.status("elastic")["attempt"] == 2
    finish(lab, "next")
    finish(lab, "elastic")
    until_free(queues, "partial")


@pytest.mark.usefixtures("crew")
def test_pods_that_do_not_start_lose_quota(lab: Namespace, queues: Queues) -> None:
    queues.queue("impatient", "2")
    lab.runs = False
    submit(lab, "stuck", "impatient")
    until(lambda: lab.events("Evicted", "stuck"), READY_SECONDS + 20, "the eviction")
    assert "PodsReadyTimeout" in lab.events("Evicted", "stuck")[0]
    lab.runs = True
    lab.until_phase("Running", "stuck")
    assert lab.status("stuck")["attempt"] >= 2


@pytest.mark.usefixtures("crew")
def test_only_kueue_takes_quota_back(lab: Namespace, queues: Queues) -> None:
    queues.queue("fragmented", "2")
    lab.runs = False
    submit(lab, "half", "fragmented", scheduling={"queue": "fragmented", "partialTimeoutSeconds": 1})
    until(lambda: len(lab.pods("half")) == 2, 20, "the pods")
    lab.bind("half-worker-0-1")
    lab.refuse("half-worker-1-1")
    until(lambda: lab.events("PartiallyScheduled", "half"), READY_SECONDS, "the release of the node")
    until(lambda: not lab.pods("half"), READY_SECONDS, "no pods")
    assert queues.condition("half", "QuotaReserved")["status"] == "True"
    assert queues.condition("half", "PodsReady")["reason"] == "WaitForStart"
    assert queues.used("fragmented") == "2"
    until(lambda: lab.events("Evicted", "half"), READY_SECONDS + 20, "the eviction")
    assert "PodsReadyTimeout" in lab.events("Evicted", "half")[0]


@pytest.mark.usefixtures("crew")
def test_deleted_workload_is_made_again(lab: Namespace, queues: Queues) -> None:
    queues.queue("forgetful", "2")
    submit(lab, "again", "forgetful")
    lab.until_phase("Running", "again")
    uid = queues.workload("again")["metadata"]["uid"]
    queues.delete_workload("again")
    until(lambda: lab.status("again")["attempt"] == 2, 20, "the second attempt")
    lab.until_phase("Running", "again")
    assert queues.workload("again")["metadata"]["uid"] != uid
    until(lambda: queues.used("forgetful") == "2", 10, "the quota to be in use")


def test_operator_that_was_away_gives_quota_back(crew: Crew, lab: Namespace, queues: Queues) -> None:
    queues.queue("absent", "2")
    submit(lab, "idle", "absent", priority="low")
    lab.until_phase("Running", "idle")
    submit(lab, "eager", "absent", priority="high")
    until(lambda: queues.workload("eager"), 20, "the Workload")
    crew.leaves()
    until(lambda: queues.condition("idle", "Evicted").get("status") == "True", 20, "the eviction")
    crew.arrives()
    lab.until_phase("Running", "eager")
    lab.until_phase("Queued", "idle")


def test_job_that_finished_while_evicted_stays_finished(crew: Crew, lab: Namespace, queues: Queues) -> None:
    queues.queue("late", "2")
    submit(lab, "done", "late")
    lab.until_phase("Running", "done")
    crew.leaves()
    for pod in lab.pods("done"):
        lab.ends(pod, 0)
    queues.change("clusterqueues", "late", {"spec": {"stopPolicy": "HoldAndDrain"}})
    until(lambda: queues.condition("done", "Evicted").get("status") == "True", 20, "the eviction")
    crew.arrives()
    lab.until_phase("Complete", "done")
    until(lambda: queues.condition("done", "Finished").get("reason") == "Succeeded", 10, "the end")
    until_free(queues, "late")


def test_deleted_job_leaves_no_workload(crew: Crew, lab: Namespace, queues: Queues) -> None:
    queues.queue("brief", "4")
    submit(lab, "kept", "brief")
    submit(lab, "gone", "brief")
    lab.until_phase("Running", "kept")
    lab.until_phase("Running", "gone")
    lab.remove("gone")
    until(lambda: not queues.workloads("gone"), 20, "no Workload")
    crew.leaves()
    lab.remove("kept")
    until(lambda: not lab.pods("kept"), 20, "no pods")
    assert queues.workloads("kept")
    crew.arrives()
    until(lambda: not queues.workloads("kept"), 20, "no Workload")
    until_free(queues, "brief")


@pytest.mark.usefixtures("crew")
def test_queue_of_many_jobs_drains(lab: Namespace, queues: Queues) -> None:
    queues.queue("busy", "20")
    names = [f"many-{number}" for number in range(MANY)]
    for name in names:
        submit(lab, name, "busy", 1)
    left = set(names)

    def drained() -> bool:
        for job in lab.jobs():
            name, status = job["metadata"]["name"], job.get("status") or {}
            if status.get("phase") == "Running":
                lab.ends(f"{name}-worker-0-{status['attempt']}", 0)
            elif status.get("phase") == "Complete":
                left.discard(name)
        return not left

    until(drained, MANY * 0.5, "all jobs to complete")
    until_free(queues, "busy")
    assert {each["status"]["conditions"][-1]["type"] for each in queues.workloads()} == {"Finished"}
