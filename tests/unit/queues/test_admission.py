"""From an admission to pods: flavors, admission checks, conflicts."""

from dataclasses import replace
from typing import Any

import pytest

from tests.support.jobs import Scene, job
from tests.support.workloads import ADMISSION, QUEUE, Workload, workload
from trainyard.domain.state.workload import AdmissionCheck, Assignment
from trainyard.frameworks.manifests import worker_pod
from trainyard.frameworks.worker_spec import Worker
from trainyard.queues.admission import (
    UnusableAdmissionError,
    conflicts,
    flavor_names,
    needs_reading,
    read_admission,
    with_admission,
)

Json = dict[str, Any]
SPOT = {"key": "spot", "operator": "Exists"}
FLAVORS: dict[str, Json | None] = {
    "gpu": {"spec": {"nodeLabels": {"pool": "gpu"}, "tolerations": [SPOT]}},
    "cpu": {"spec": {"nodeLabels": {"arch": "arm"}, "tolerations": [SPOT]}},
}


def updated(**update: Any) -> Workload:
    check = AdmissionCheck(
        "provisioning", "Ready", updates=({"name": "worker", **update}, {"name": "ps", "labels": {}})
    )
    return workload().admitted().change(checks=(check,))


def test_flavors_become_node_selector_and_tolerations() -> None:
    assigned = (Assignment("worker", 2, ("gpu", "cpu")),)
    given = workload().admitted().change(assignments=assigned).view
    assert flavor_names(given) == ["gpu", "cpu"]
    admission = read_admission(given, FLAVORS)
    assert (admission.workload, admission.uid, admission.cluster_queue) == (given.name, given.uid, "cluster")
    (pods,) = admission.pods
    assert (pods.role, pods.count) == ("worker", 2)
    assert pods.node_selector == {"pool": "gpu", "arch": "arm"}
    assert pods.tolerations == [SPOT]
    assert pods.labels == {"kueue.x-k8s.io/podset": "worker"}


def test_admission_checks_add_their_updates() -> None:
    given = updated(labels={"a": "1"}, annotations={"b": "2"}, nodeSelector={"zone": "x"}, tolerations=[{"key": "k"}])
    (pods,) = read_admission(given.view, FLAVORS).pods
    assert (pods.labels["a"], pods.annotations) == ("1", {"b": "2"})
    assert pods.node_selector == {"pool": "gpu", "zone": "x"}
    assert pods.tolerations == [SPOT, {"key": "k"}]


@pytest.mark.parametrize(
    ("given", "flavors", "message"),
    [
        pytest.param(
            workload().admitted().change(assignments=(Assignment("worker", 3, ("gpu",), has_topology=True),)),
            FLAVORS,
            "use a ResourceFlavor without topologyName",
            id="nodes by a Topology",
        ),
        pytest.param(workload().admitted(), {"gpu": None}, "the ResourceFlavor gpu does not exist", id="no flavor"),
        pytest.param(
            updated(nodeSelector={"pool": "other"}),
            FLAVORS,
            "admission check provisioning sets pool to other, and it is gpu already",
            id="a conflict",
        ),
        pytest.param(
            updated(labels={f"l{number}": "x" for number in range(65)}), FLAVORS, "at most 64 items", id="too many"
        ),
    ],
)
def test_unusable_admission_says_why(given: Workload, flavors: dict[str, Json | None], message: str) -> None:
    with pytest.raises(UnusableAdmissionError, match=message):
        read_admission(given.view, flavors)


@pytest.mark.parametrize(
    ("selector", "message"),
    [
        (None, ""),
        ({"pool": "gpu"}, ""),
        ({"zone": "a"}, ""),
        ({"pool": "cpu"}, "nodeSelector of the workers has pool: cpu, and the queue admitted gpu"),
    ],
)
def test_conflict_with_the_template_is_named(selector: dict[str, str] | None, message: str) -> None:
    pod = {"containers": [{"name": "main", "image": "i"}], "nodeSelector": selector}
    snapshot = job(3, **QUEUE, template={"spec": pod}).snapshot
    assert conflicts(snapshot, ADMISSION) == message


def test_admitted_role_must_exist() -> None:
    odd = ADMISSION.evolve(pods=[ADMISSION.pods[0].evolve(role="chief")])
    assert conflicts(job(3, **QUEUE).snapshot, odd) == "the job has no role chief"


@pytest.mark.parametrize(
    ("scene", "expected"),
    [
        pytest.param(job(3, **QUEUE).queued(workload().admitted().view), True, id="new"),
        pytest.param(job(3, **QUEUE).queued(workload().reserved().view), False, id="not admitted"),
        pytest.param(job(3, **QUEUE).queued(workload().admitted().evicted().view), False, id="evicted"),
        pytest.param(
            job(3, **QUEUE).with_status(admission=ADMISSION).in_queue(workload().admitted().view), False, id="stored"
        ),
        pytest.param(job(3).in_queue(workload().admitted().view), False, id="no queue"),
    ],
)
def test_admission_is_read_once(scene: Scene, *, expected: bool) -> None:
    assert (needs_reading(scene.snapshot) is not None) is expected


def test_pod_gets_what_was_admitted() -> None:
    admission = ADMISSION.evolve(pods=[ADMISSION.pods[0].evolve(tolerations=[SPOT], labels={"l": "1"})])
    view = job(3, **QUEUE).with_status(admission=admission).job
    worker = Worker(view, 0, 1, 3)
    plain = worker_pod(worker)
    pod = with_admission(worker, plain)
    assert pod["spec"]["nodeSelector"] == {"pool": "gpu"}
    assert pod["spec"]["tolerations"] == [*plain["spec"]["tolerations"], SPOT]
    assert pod["metadata"]["labels"] == {"l": "1", **plain["metadata"]["labels"]}
    without = replace(view, status=view.status.evolve(admission=None))
    assert with_admission(replace(worker, job=without), plain) == plain


def test_values_of_the_user_stay() -> None:
    pod = {"containers": [{"name": "main", "image": "i"}], "nodeSelector": {"pool": "gpu", "own": "x"}}
    view = job(3, **QUEUE, template={"spec": pod}).with_status(admission=ADMISSION).job
    worker = Worker(view, 0, 1, 3)
    assert with_admission(worker, worker_pod(worker))["spec"]["nodeSelector"] == {"pool": "gpu", "own": "x"}
