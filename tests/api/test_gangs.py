"""PodGroups of the three gang schedulers on a real API server: their schemas, their pods, and the permissions of the chart."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.api.gang_scheduler import ALL, CPU, GANGS, GATES, PATHS
from tests.api.nodes import Namespace
from tests.api.plane import Plane, running
from tests.api.process import operator
from tests.support import third_party_crds
from tests.support.control_plane import RefusedError
from tests.support.polling import until
from tests.unit.helm.chart import Chart

SPECS: dict[str, dict[str, Any]] = {
    "native": {"schedulingPolicy": {"gang": {"minCount": 2}}},
    "volcano": {"minMember": 2, "queue": "research", "minResources": {"cpu": "2"}},
    "coscheduling": {"minMember": 2},
}


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    folder = tmp_path_factory.mktemp("gangs") / "state"
    with running(folder, ["lab", "office"], third_party_crds.gang_crds(), GATES) as made:
        yield made


@pytest.fixture
def granted(plane: Plane, chart: Chart) -> None:
    plane.grant_chart(chart, GANGS)


def pod_groups(plane: Plane, scheduler: str) -> dict[str, dict[str, Any]]:
    """Return the PodGroups that are not being deleted, by name. No controller here removes the finalizer of native ones."""
    found = plane.call("GET", f"/apis/{PATHS[scheduler]}/namespaces/lab/podgroups")["items"]
    return {each["metadata"]["name"]: each for each in found if "deletionTimestamp" not in each["metadata"]}


@pytest.mark.usefixtures("granted")
@pytest.mark.parametrize("scheduler", PATHS)
def test_each_group_has_its_pod_group(plane: Plane, lab: Namespace, scheduler: str) -> None:
    name = f"gang-{scheduler}"
    with operator(plane, name, gang_schedulers=ALL) as op:
        queue = {"queue": "research"} if scheduler == "volcano" else {}
        lab.submit(name, template=CPU, scheduling={"gang": scheduler, **queue})
        lab.until_phase("Running", name)
        [group] = pod_groups(plane, scheduler).values()
        assert group["metadata"]["name"] == f"{name}-1"
        assert SPECS[scheduler].items() <= group["spec"].items()
        pods = lab.pods(name)
        assert {_gang_of(pod) for pod in pods.values()} == {f"{name}-1"}
        lab.ends(f"{name}-worker-0-1", 1)
        until(lambda: [*pod_groups(plane, scheduler)] == [f"{name}-2"], 30, "the next group's own")
        lab.until_phase("Running", name)
        for pod in lab.pods(name):
            if pod.endswith("-2"):
                lab.ends(pod, 0)
        lab.until_phase("Complete", name)
        until(lambda: not pod_groups(plane, scheduler), 30, "none for a finished job")
        assert not op.bugs()
    lab.remove(name)


def _gang_of(pod: dict[str, Any]) -> str | None:
    """Return the name that the pod has in one of the three ways."""
    metadata = pod["metadata"]
    native = pod["spec"].get("schedulingGroup", {}).get("podGroupName")
    volcano = metadata["annotations"].get("scheduling.k8s.io/group-name")
    found: str | None = native or volcano or metadata["labels"].get("scheduling.x-k8s.io/pod-group")
    return found


@pytest.mark.usefixtures("granted")
@pytest.mark.parametrize("scheduler", PATHS)
def test_pod_group_of_another_owner_is_kept(plane: Plane, lab: Namespace, scheduler: str) -> None:
    name, path = f"taken-{scheduler}", f"/apis/{PATHS[scheduler]}/namespaces/lab/podgroups"
    theirs = {"apiVersion": PATHS[scheduler], "kind": "PodGroup", "metadata": {"name": f"{name}-1"}}
    plane.call("POST", path, {**theirs, "spec": SPECS[scheduler]})
    with operator(plane, name, gang_schedulers=ALL):
        lab.submit(name, scheduling={"gang": scheduler})
        until(lambda: lab.condition("Running", name).get("reason") == "NameConflict", 30, "the condition")
        assert lab.pods(name) == {}
        assert f"{name}-1" in pod_groups(plane, scheduler)
    lab.remove(name)
    plane.forget(f"{path}/{name}-1")


@pytest.mark.usefixtures("granted")
def test_auto_takes_what_the_cluster_has(plane: Plane, lab: Namespace) -> None:
    with operator(plane, "auto", gang_schedulers="native"):
        lab.submit("auto")
        lab.until_phase("Running", "auto")
        assert [*pod_groups(plane, "native")] == ["auto-1"]
    lab.remove("auto")


def test_missing_permission_is_a_condition(plane: Plane, chart: Chart, lab: Namespace) -> None:
    plane.grant_chart(chart)
    with operator(plane, "denied", gang_schedulers=ALL):
        lab.submit("denied", scheduling={"gang": "volcano"})
        until(lambda: lab.condition("Running", "denied").get("reason") == "PermissionDenied", 30, "the condition")
        assert 'resource "podgroups"' in lab.condition("Running", "denied")["message"]
        assert lab.pods("denied") == {}
        plane.grant_chart(chart, GANGS)
        lab.until_phase("Running", "denied")
    lab.remove("denied")


@pytest.mark.usefixtures("granted")
def test_unlisted_scheduler_holds_the_job(plane: Plane, lab: Namespace) -> None:
    with operator(plane, "unlisted", gang_schedulers="native"):
        lab.submit("unlisted", scheduling={"gang": "volcano"})
        until(lambda: lab.condition("Stalled", "unlisted").get("reason") == "GangUnavailable", 30, "the condition")
        assert lab.pods("unlisted") == {}
        lab.change("unlisted", lifecycle={"suspend": True})
        lab.until_phase("Suspended", "unlisted")
        lab.change("unlisted", scheduling={"gang": "auto"}, lifecycle={"suspend": False})
        lab.until_phase("Running", "unlisted")
    lab.remove("unlisted")


@pytest.mark.usefixtures("granted")
def test_topology_is_kept_by_the_server(plane: Plane, lab: Namespace) -> None:
    topology = {"key": "topology.kubernetes.io/zone", "required": True}
    with operator(plane, "near", gang_schedulers="native"):
        lab.submit("near", scheduling={"topology": topology})
        lab.until_phase("Running", "near")
        [pod, _] = lab.pods("near").values()
        [term] = pod["spec"]["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        assert term["topologyKey"] == topology["key"]
        assert term["labelSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    lab.remove("near")


@pytest.mark.usefixtures("granted")
def test_policy_admits_only_pod_groups_of_jobs(plane: Plane, chart: Chart, lab: Namespace) -> None:
    release = chart.render(GANGS)
    path = "/apis/admissionregistration.k8s.io/v1"
    policy = release.one("ValidatingAdmissionPolicy", "trainyard-operator")
    binding = release.one("ValidatingAdmissionPolicyBinding", "trainyard-operator")
    plane.call("POST", f"{path}/validatingadmissionpolicies", dict(policy))
    plane.call("POST", f"{path}/validatingadmissionpolicybindings", dict(binding))
    account = "system:serviceaccount:trainyard-system:trainyard"
    groups = f"/apis/{PATHS['volcano']}/namespaces/lab/podgroups"
    theirs = {"apiVersion": PATHS["volcano"], "kind": "PodGroup", "metadata": {"name": "theirs"}, "spec": {}}

    def refused() -> bool:
        try:
            plane.call("POST", f"{groups}?dryRun=All", theirs, user=account)
        except RefusedError as error:
            return "PodGroups of TrainingJobs" in str(error)
        return False

    try:
        until(refused, 30, "the policy to hold")
        with operator(plane, "policed", gang_schedulers="volcano") as op:
            lab.submit("policed")
            lab.until_phase("Running", "policed")
            lab.change("policed", lifecycle={"suspend": True})
            until(lambda: not pod_groups(plane, "volcano"), 30, "the deletion of all PodGroups of a job")
            assert not op.bugs()
    finally:
        plane.forget(f"{path}/validatingadmissionpolicybindings/trainyard-operator")
        plane.forget(f"{path}/validatingadmissionpolicies/trainyard-operator")
    lab.remove("policed")


def test_rules_of_scheduling_name_the_fix(lab: Namespace) -> None:
    own = {"spec": {**CPU["spec"], "priorityClassName": "low"}}
    with pytest.raises(RefusedError, match="leave one of them out"):
        lab.submit("odd", template=own, scheduling={"priorityClassName": "high"})
    with pytest.raises(RefusedError, match=r"scheduling.gang"):
        lab.submit("odd", scheduling={"gang": "slurm"})
    with pytest.raises(RefusedError, match=r"scheduling.topology.key"):
        lab.submit("odd", scheduling={"topology": {"key": "a b"}})
    lab.submit("odd")
    for change in (
        {"gang": "native"},
        {"queue": "other"},
        {"priorityClassName": "high"},
        {"topology": {"key": "rack"}},
    ):
        with pytest.raises(RefusedError, match="can be changed only while the job is suspended"):
            lab.change("odd", scheduling=change)
    lab.change("odd", scheduling={"partialTimeoutSeconds": 60})
    lab.change("odd", scheduling={"gang": "none"}, lifecycle={"suspend": True})
    lab.remove("odd")
