"""What users and administrators change while jobs are in a queue of the real Kueue, and what they get wrong."""

import pytest

from tests.api.kueue import API, Crew, Queues, submit, until_free
from tests.api.nodes import Namespace
from tests.support.control_plane import RefusedError
from tests.support.polling import until
from trainyard.domain.state.observe import job_view
from trainyard.queues.workload import workload_name

CONTAINER = {"name": "main", "image": "example.com/trainer:2", "resources": {"requests": {"cpu": "1"}}}
CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"


@pytest.fixture
def lab(queue_lab: Namespace) -> Namespace:
    return queue_lab


@pytest.mark.usefixtures("crew")
def test_label_of_kueue_names_the_queue(lab: Namespace, queues: Queues) -> None:
    queues.queue("labelled", "2")
    lab.submit("marked", {"kueue.x-k8s.io/queue-name": "labelled"}, template={"spec": {"containers": [CONTAINER]}})
    lab.until_phase("Running", "marked")
    assert queues.workload("marked")["spec"]["queueName"] == "labelled"


@pytest.mark.usefixtures("crew")
def test_more_replicas_need_more_quota(lab: Namespace, queues: Queues) -> None:
    queues.queue("growing", "3")
    submit(lab, "grows", "growing")
    lab.until_phase("Running", "grows")
    uid = queues.workload("grows")["metadata"]["uid"]
    lab.scale("grows", 3)
    until(lambda: len(lab.pods("grows")) == 3, 20, "three workers")
    lab.until_phase("Running", "grows")
    assert queues.workload("grows")["metadata"]["uid"] != uid
    until(lambda: queues.used("growing") == "3", 10, "the quota")


@pytest.mark.usefixtures("crew")
def test_changed_job_keeps_its_workload(lab: Namespace, queues: Queues) -> None:
    queues.queue("changing", "2")
    queues.queue("other", "2")
    submit(lab, "changes", "changing")
    lab.until_phase("Running", "changes")
    with pytest.raises(RefusedError, match=r"queue, .* can be changed only while the job is suspended"):
        lab.change("changes", scheduling={"queue": "other"})
    lab.change("changes", lifecycle={"suspend": True})
    lab.until_phase("Suspended", "changes")
    until_free(queues, "changing")
    uid = queues.workload("changes")["metadata"]["uid"]
    template = {"spec": {"containers": [CONTAINER]}}
    lab.change("changes", template=template, scheduling={"queue": "other"}, lifecycle={"suspend": False})
    lab.until_phase("Running", "changes")
    workload = queues.workload("changes")
    (pod_set,) = workload["spec"]["podSets"]
    assert (workload["metadata"]["uid"], workload["spec"]["queueName"]) == (uid, "other")
    assert pod_set["template"]["spec"]["containers"][0]["image"] == "example.com/trainer:2"


@pytest.mark.usefixtures("crew")
def test_missing_priority_class_is_named(lab: Namespace, queues: Queues) -> None:
    queues.queue("ranked", "2")
    submit(lab, "unranked", "ranked", priority="silver")
    until(lambda: lab.events("PriorityClassMissing", "unranked"), 20, "the event")
    assert "there is no WorkloadPriorityClass silver" in lab.events("PriorityClassMissing", "unranked")[0]
    assert lab.condition("Stalled", "unranked")["reason"] == "PriorityClassMissing"
    queues.priority("silver", 5)
    lab.until_phase("Running", "unranked", within=40)
    assert lab.condition("Stalled", "unranked")["status"] == "False"


@pytest.mark.usefixtures("crew")
def test_class_of_the_pods_is_the_priority(lab: Namespace, queues: Queues) -> None:
    queues.queue("classic", "6")
    lab.plane.forget(f"{CLASSES}/gold")
    lab.plane.call("POST", CLASSES, {"metadata": {"name": "gold"}, "value": 77})
    gold = {"queue": "classic", "priorityClassName": "gold"}
    submit(lab, "ranked", "classic", template={"spec": {"containers": [CONTAINER], "priorityClassName": "gold"}})
    submit(lab, "named", "classic", scheduling=gold)
    submit(lab, "labelled", "classic", priority="low", scheduling=gold)
    priorities = {}
    for name in ("ranked", "named", "labelled"):
        lab.until_phase("Running", name)
        spec = queues.workload(name)["spec"]
        priorities[name] = (spec["priority"], spec["priorityClassRef"]["kind"])
        assert {pod["spec"]["priorityClassName"] for pod in lab.pods(name).values()} == {"gold"}
    assert priorities == {
        "ranked": (77, "PriorityClass"),
        "named": (77, "PriorityClass"),
        "labelled": (10, "WorkloadPriorityClass"),
    }


@pytest.mark.usefixtures("crew")
def test_admission_check_changes_the_pods(lab: Namespace, queues: Queues) -> None:
    check = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "AdmissionCheck", "metadata": {"name": "manual"}}
    queues.put("admissionchecks", {**check, "spec": {"controllerName": "example.com/manual"}})
    active = {"type": "Active", "status": "True", "reason": "Active", "message": ""}
    conditions = {"status": {"conditions": [{**active, "lastTransitionTime": "2026-01-01T00:00:00Z"}]}}
    lab.plane.call("PATCH", f"{API}/admissionchecks/manual/status", conditions, "application/merge-patch+json")
    queues.queue("checked", "2", admissionChecksStrategy={"admissionChecks": [{"name": "manual"}]})
    submit(lab, "inspected", "checked")
    until(lambda: lab.status("inspected").get("reason") == "AdmissionChecksPending", 20, "the reserved quota")
    assert "manual is Pending" in lab.condition("Queued", "inspected")["message"]
    state = {
        "name": "manual",
        "state": "Ready",
        "message": "fine",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
        "podSetUpdates": [{"name": "worker", "labels": {"checked": "yes"}, "nodeSelector": {"rack": "7"}}],
    }
    name = queues.workload("inspected")["metadata"]["name"]
    path = f"{API}/namespaces/lab/workloads/{name}/status"
    lab.plane.call("PATCH", path, {"status": {"admissionChecks": [state]}}, "application/merge-patch+json")
    lab.until_phase("Running", "inspected")
    pods = lab.pods("inspected").values()
    assert {pod["metadata"]["labels"]["checked"] for pod in pods} == {"yes"}
    assert [pod["spec"]["nodeSelector"] for pod in pods] == [{"pool": "gpu", "rack": "7"}] * 2


def test_name_of_another_workload_is_reported(crew: Crew, lab: Namespace, queues: Queues) -> None:
    queues.queue("taken", "2")
    crew.leaves()
    submit(lab, "late", "taken")
    view = job_view(lab.job("late"))
    pod_set = {"name": "main", "count": 1, "template": {"spec": {"containers": [CONTAINER]}}}
    spec = {"queueName": "nowhere", "podSets": [pod_set]}
    kind = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload", "metadata": {"name": workload_name(view)}}
    place = f"{API}/namespaces/lab/workloads"
    lab.plane.call("POST", place, {**kind, "spec": spec})
    crew.arrives()
    until(lambda: lab.events("NameConflict", "late"), 20, "the event")
    lab.plane.call("DELETE", f"{place}/{workload_name(view)}")
    lab.until_phase("Running", "late", within=40)
