"""The Workload of a job: what Kueue counts, and nothing else."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from tests.support.jobs import NOW, job
from tests.support.workloads import QUEUE
from trainyard.api.internal_status import PodGroup
from trainyard.api.scheduling import GangScheduler
from trainyard.api.status import Avoidance, SuspectNode
from trainyard.domain.state.snapshot import JobView
from trainyard.domain.state.workload import queue_request
from trainyard.domain.workload_changes import PodSet
from trainyard.frameworks.manifests import worker_pod
from trainyard.queues.workload import Priority, as_new, members_of, workload, workload_name

Json = dict[str, Any]
CONTAINER: Json = {
    "name": "main",
    "image": "trainer:1",
    "command": ["python", "train.py"],
    "env": [{"name": "SECRET", "value": "x"}],
    "resources": {"limits": {"nvidia.com/gpu": 8}},
    "volumeMounts": [{"name": "data", "mountPath": "/data"}],
}
TEMPLATE: Json = {
    "metadata": {"annotations": {"kueue.x-k8s.io/podset-required-topology": "rack", "note": "x"}},
    "spec": {
        "nodeSelector": {"zone": "a"},
        "initContainers": [{"name": "fetch", "image": "fetch:1", "resources": {"requests": {"cpu": "2"}}}],
        "containers": [CONTAINER],
        "volumes": [{"name": "data", "emptyDir": {}}],
    },
}


def made(view: JobView, *pod_sets: PodSet, priority: Priority | None = None) -> Json:
    pods = [worker_pod(each) for each in members_of(as_new(view, None), pod_sets)]
    return workload(view, pod_sets, pods, priority or Priority())


def test_pod_set_has_what_quota_depends_on() -> None:
    view = job(3, **QUEUE, template=TEMPLATE).job
    (pod_set,) = made(view, PodSet("worker", 3))["spec"]["podSets"]
    template = pod_set.pop("template")
    assert pod_set == {"name": "worker", "count": 3}
    assert template["metadata"]["annotations"] == {"kueue.x-k8s.io/podset-required-topology": "rack"}
    own = {name: value for name, value in template["metadata"]["labels"].items() if name.startswith("trainyard.dev/")}
    assert own == {
        "trainyard.dev/job-name": "train",
        "trainyard.dev/job-uid": view.uid,
        "trainyard.dev/role": "worker",
    }
    spec = template["spec"]
    assert spec["containers"] == [{name: CONTAINER[name] for name in ("name", "image", "resources")}]
    assert spec["initContainers"] == [TEMPLATE["spec"]["initContainers"][0]]
    assert (spec["nodeSelector"], spec["restartPolicy"]) == ({"zone": "a"}, "Never")
    assert {"volumes", "hostname", "subdomain", "enableServiceLinks"}.isdisjoint(spec)


def test_each_role_is_a_pod_set() -> None:
    roles = [{"name": "ps", "replicas": 2, "resources": {"limits": {"cpu": "4"}}}, {"name": "chief"}]
    view = job(3, **QUEUE, framework="tensorflow", roles=roles).job
    found = made(view, PodSet("worker", 3), PodSet("ps", 2), PodSet("chief", 1))["spec"]["podSets"]
    assert [(each["name"], each["count"]) for each in found] == [("worker", 3), ("ps", 2), ("chief", 1)]
    resources = [each["template"]["spec"]["containers"][0].get("resources") for each in found]
    assert resources == [None, {"limits": {"cpu": "4"}}, None]


def test_fewest_workers_are_the_minimum_count() -> None:
    (pod_set,) = made(job(4, **QUEUE).job, PodSet("worker", 4, 2))["spec"]["podSets"]
    assert (pod_set["count"], pod_set["minCount"]) == (4, 2)


def test_workload_belongs_to_its_job() -> None:
    view = job(1, **QUEUE).job
    metadata = made(view, PodSet("worker", 1))["metadata"]
    (owner,) = metadata["ownerReferences"]
    assert (owner["kind"], owner["uid"], owner["controller"]) == ("TrainingJob", view.uid, True)
    assert metadata["labels"] == {
        "trainyard.dev/job-name": "train",
        "trainyard.dev/job-uid": view.uid,
        "kueue.x-k8s.io/job-uid": view.uid,
    }
    assert metadata["finalizers"] == ["kueue.x-k8s.io/resource-in-use"]
    assert metadata["annotations"] == {"trainyard.dev/template-hash": view.template_hash}


def test_avoided_nodes_are_not_asked_for() -> None:
    node = SuspectNode(name="n1", avoidance=Avoidance.REQUIRED, until=NOW + timedelta(days=1))
    view = job(1, **QUEUE).with_status(suspect_nodes=[node]).job
    (pod_set,) = made(view, PodSet("worker", 1))["spec"]["podSets"]
    assert "affinity" not in pod_set["template"]["spec"]


def test_gang_is_that_of_a_first_attempt() -> None:
    group = PodGroup(scheduler=GangScheduler.VOLCANO, created_in_attempt=7, min_member=2, queue="team")
    view = job(2, **QUEUE).with_status(attempt=7, pod_group=group).job
    status = as_new(view, group).status
    assert (status.attempt, status.pod_group) == (1, group.evolve(created_in_attempt=1))
    assert as_new(view, None).status.pod_group is None


@pytest.mark.parametrize(
    ("priority", "expected"),
    [
        (Priority(), {"priority": 0}),
        (
            Priority(10, "kueue.x-k8s.io", "WorkloadPriorityClass", "low"),
            {
                "priority": 10,
                "priorityClassRef": {"group": "kueue.x-k8s.io", "kind": "WorkloadPriorityClass", "name": "low"},
            },
        ),
    ],
)
def test_priority_names_its_class(priority: Priority, expected: Json) -> None:
    spec = made(job(1, **QUEUE).job, PodSet("worker", 1), priority=priority)["spec"]
    assert {name: spec[name] for name in spec if name.startswith("priority")} == expected


def test_labels_of_kueue_are_followed() -> None:
    metadata = {
        "labels": {
            "kueue.x-k8s.io/queue-name": "labelled",
            "kueue.x-k8s.io/priority-class": "low",
            "kueue.x-k8s.io/max-exec-time-seconds": "600",
        },
        "annotations": {"provreq.kueue.x-k8s.io/maxRunDurationSeconds": "60", "other": "x"},
    }
    scene = job(1)
    request = queue_request(scene.spec.scheduling, metadata)
    view = replace(scene.job, queue=request)
    found = made(view, PodSet("worker", 1))
    assert (found["spec"]["queueName"], found["spec"]["maximumExecutionTimeSeconds"]) == ("labelled", 600)
    assert found["metadata"]["annotations"]["provreq.kueue.x-k8s.io/maxRunDurationSeconds"] == "60"
    assert "other" not in found["metadata"]["annotations"]
    own = queue_request(job(1, scheduling={"queue": "mine", "priorityClassName": "high"}).spec.scheduling, metadata)
    assert own is not None
    assert (own.queue, own.label, own.priority_class) == ("mine", "labelled", "low")


@pytest.mark.parametrize("seconds", ["", "0", "-1", "soon", "9" * 12])
def test_unreadable_execution_time_is_none(seconds: str) -> None:
    labels = {"kueue.x-k8s.io/queue-name": "q", "kueue.x-k8s.io/max-exec-time-seconds": seconds}
    request = queue_request(job(1).spec.scheduling, {"labels": labels})
    assert request is not None
    assert request.max_execution_seconds is None


def test_names_differ_for_jobs_of_one_name() -> None:
    first, second = job(1).job, replace(job(1).job, uid="other")
    long = replace(first, name="a" * 51)
    assert workload_name(first).startswith("trainingjob-train-")
    assert workload_name(first) != workload_name(second)
    assert len(workload_name(long)) <= 63
