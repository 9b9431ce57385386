"""What is read from a Workload as the API server has it."""

from typing import Any

import pytest

from trainyard.domain.state.workload import Assignment, Queueing, WorkloadView, workload_view
from trainyard.domain.workload_changes import PodSet

Json = dict[str, Any]


def raw(**status: Any) -> Json:
    return {
        "metadata": {
            "uid": "u",
            "namespace": "ns",
            "name": "w",
            "resourceVersion": "12",
            "generation": 3,
            "labels": {"trainyard.dev/job-uid": "job"},
            "annotations": {"trainyard.dev/template-hash": "abc"},
            "finalizers": ["kueue.x-k8s.io/resource-in-use"],
        },
        "spec": {
            "queueName": "team",
            "podSets": [{"name": "worker", "count": 3, "minCount": 1, "template": {}}],
            "priorityClassRef": {"group": "kueue.x-k8s.io", "kind": "WorkloadPriorityClass", "name": "low"},
        },
        "status": status,
    }


def test_workload_is_projected() -> None:
    admission = {
        "clusterQueue": "cluster",
        "podSetAssignments": [{"name": "worker", "count": 2, "flavors": {"cpu": "a", "memory": "a", "gpu": "b"}}],
    }
    checks = [{"name": "check", "state": "Ready", "message": "fine", "podSetUpdates": [{"name": "worker"}]}]
    view = workload_view(raw(admission=admission, admissionChecks=checks))
    assert (view.uid, view.job_uid, view.resource_version, view.generation) == ("u", "job", 12, 3)
    assert (view.queue, view.priority_class, view.template_hash) == ("team", "low", "abc")
    assert view.pod_sets == (PodSet("worker", 3, 1),)
    assert (view.cluster_queue, view.assignments) == ("cluster", (Assignment("worker", 2, ("a", "b")),))
    assert [(each.name, each.state, each.updates) for each in view.checks] == [
        ("check", "Ready", ({"name": "worker"},))
    ]
    assert (view.active, view.deleting) == (True, False)


def test_class_of_pods_is_no_workload_priority_class() -> None:
    found = raw()
    found["spec"]["priorityClassRef"] = {"group": "scheduling.k8s.io", "kind": "PriorityClass", "name": "low"}
    assert workload_view(found).priority_class == ""


def test_workload_without_label_is_refused() -> None:
    found = raw()
    del found["metadata"]["labels"]
    with pytest.raises(KeyError):
        workload_view(found)


CONDITIONS = {"QuotaReserved": "True", "Admitted": "True", "Evicted": "False", "Finished": "False"}


@pytest.mark.parametrize(
    ("changed", "admitted"),
    [
        ({}, True),
        ({"Admitted": "False"}, False),
        ({"QuotaReserved": "False"}, False),
        ({"Evicted": "True"}, False),
        ({"Finished": "True"}, False),
    ],
)
def test_admitted_only_while_nothing_speaks_against_it(changed: dict[str, str], *, admitted: bool) -> None:
    listed = [{"type": kind, "status": status} for kind, status in (CONDITIONS | changed).items()]
    assert workload_view(raw(conditions=listed)).admitted is admitted


def view(name: str, *, deleting: bool = False) -> WorkloadView:
    return WorkloadView(name, "ns", name, 1, "job", "team", deleting=deleting)


def test_workload_that_is_not_deleted_counts() -> None:
    assert Queueing().workload is None
    assert Queueing((view("a", deleting=True), view("b"))).workload == view("b")
