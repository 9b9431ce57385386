"""The requests about PodGroups: one before the pods of each group, none for a job at rest."""

from typing import Any

import pytest

from tests.support.fake_api import FakeApi
from tests.support.waiting import until
from tests.unit.controller.conftest import operator
from tests.unit.controller.kubelet import LAB, Lab
from trainyard.api.scheduling import GangScheduler as G
from trainyard.controller.reconcile.gang_discovery import pod_groups
from trainyard.kube.resource import PODS

VOLCANO = pod_groups(G.VOLCANO)
SERVED = {"kind": "APIResourceList", "resources": [{"name": "podgroups"}]}
GANGS: dict[str, Any] = {"gang_schedulers": (G.VOLCANO,)}
FIRST = ("job-worker-0-1", "job-worker-1-1")
DENIED = (
    'podgroups.scheduling.volcano.sh is forbidden: User "me" cannot create resource "podgroups"'
    ' in API group "scheduling.volcano.sh" in the namespace "lab"'
)


@pytest.fixture
def lab(api: FakeApi) -> Lab:
    api.served["/apis/scheduling.volcano.sh/v1beta1"] = SERVED
    return Lab(api)


def stored(api: FakeApi) -> list[dict[str, Any]]:
    return list(api.cluster.objects(VOLCANO, LAB))


def writes(api: FakeApi) -> list[str]:
    return [call.verb for call in api.writes if call.method != "PUT" and "events" not in call.path]


async def test_pod_group_exists_before_the_pods(api: FakeApi, lab: Lab) -> None:
    async with operator(api, **GANGS):
        uid = lab.submit(scheduling={"queue": "research"})["metadata"]["uid"]
        await lab.until_pods(*FIRST)
        [group] = stored(api)
        assert (group["metadata"]["name"], group["spec"]) == (
            "job-1",
            {"minMember": 2, "queue": "research", "minResources": {}},
        )
        assert group["metadata"]["ownerReferences"][0]["uid"] == uid
        assert writes(api) == ["POST services", "POST podgroups", "POST pods", "POST pods"]
        [pod, _] = api.cluster.objects(PODS, LAB)
        assert pod["spec"]["schedulerName"] == "volcano"
        assert pod["metadata"]["annotations"]["scheduling.k8s.io/group-name"] == "job-1"
        lab.runs(*FIRST)
        await lab.until_phase("Running")


async def test_next_group_has_its_own(api: FakeApi, lab: Lab) -> None:
    async with operator(api, **GANGS):
        lab.submit()
        await lab.until_pods(*FIRST)
        lab.runs(*FIRST)
        lab.ends(FIRST[0], 1)
        await lab.until_pods("job-worker-0-2", "job-worker-1-2")
        assert [group["metadata"]["name"] for group in stored(api)] == ["job-2"]


async def test_finished_job_has_none(api: FakeApi, lab: Lab) -> None:
    async with operator(api, **GANGS):
        lab.submit()
        await lab.until_pods(*FIRST)
        lab.runs(*FIRST)
        for pod in FIRST:
            lab.ends(pod, 0)
        await until(lambda: not stored(api))
        await lab.until_phase("Complete")
        await until(lambda: "podGroup" not in lab.status()["internal"])
        assert writes(api).count("DELETE podgroups") == 1


async def test_suspended_job_has_none(api: FakeApi, lab: Lab) -> None:
    async with operator(api, **GANGS):
        lab.submit()
        await lab.until_pods(*FIRST)
        lab.change(lifecycle={"suspend": True})
        await until(lambda: not stored(api))
        await until(lambda: "podGroup" not in lab.status()["internal"])
        lab.change(lifecycle={"suspend": False})
        await until(lambda: [group["metadata"]["name"] for group in stored(api)] == ["job-2"])


async def test_missing_permission_is_a_condition(api: FakeApi, lab: Lab) -> None:
    api.fault(method="POST", path=".*/podgroups", status=403, reason="Forbidden", message=DENIED, times=10_000)
    async with operator(api, **GANGS):
        lab.submit()
        await until(lambda: lab.condition("Running").get("reason") == "PermissionDenied")
        assert DENIED in lab.condition("Running")["message"]
        assert lab.pods() == []


async def test_refused_pod_group_is_a_condition(api: FakeApi, lab: Lab) -> None:
    message = 'PodGroup "job-1" is invalid: spec.queue: Invalid value'
    api.fault(method="POST", path=".*/podgroups", status=422, reason="Invalid", message=message, times=10_000)
    async with operator(api, **GANGS):
        lab.submit()
        await until(lambda: lab.condition("Running").get("reason") == "PodGroupRejected")
        assert message in lab.condition("Running")["message"]
        assert (lab.pods(), lab.condition("Failed")) == ([], {})


async def test_pod_group_of_another_owner_blocks_the_pods(api: FakeApi, lab: Lab) -> None:
    api.cluster.create(VOLCANO, LAB, {"metadata": {"name": "job-1"}, "spec": {}})
    async with operator(api, **GANGS):
        lab.submit()
        await until(lambda: lab.condition("Running").get("reason") == "NameConflict")
        assert lab.condition("Running")["message"] == "PodGroup job-1 exists and does not belong to this TrainingJob"
        assert lab.pods() == []


async def test_lost_answer_repeats_the_pod_group(api: FakeApi, lab: Lab) -> None:
    api.fault(method="POST", path=".*/podgroups", lose_answer=True)
    async with operator(api, **GANGS):
        lab.submit()
        await lab.until_pods(*FIRST)
        assert len(stored(api)) == 1


async def test_refused_deletion_does_not_hold_the_job(api: FakeApi, lab: Lab) -> None:
    message = DENIED.replace("create", "deletecollection")
    api.fault(method="DELETE", path=".*/podgroups", status=403, reason="Forbidden", message=message, times=10_000)
    async with operator(api, **GANGS):
        lab.submit()
        await lab.until_pods(*FIRST)
        lab.runs(*FIRST)
        for pod in FIRST:
            lab.ends(pod, 0)
        await lab.until_phase("Complete")
        await until(lambda: "podGroup" not in lab.status()["internal"])
        assert lab.condition("Stalled").get("status") != "True"


async def test_conflict_in_the_template_is_an_event(api: FakeApi, lab: Lab) -> None:
    template = {"spec": {"containers": [{"name": "main", "image": "trainer:1"}], "schedulerName": "mine"}}
    async with operator(api, **GANGS):
        lab.submit(template=template, scheduling={"gang": "volcano"})
        await lab.until_pods(*FIRST)
        await until(lambda: any(e.body.get("reason") == "UserSchedulingPreserved" for e in api.writes))
        assert api.cluster.objects(PODS, LAB)[0]["spec"]["schedulerName"] == "mine"


async def test_unlisted_scheduler_creates_no_pods(api: FakeApi, lab: Lab) -> None:
    async with operator(api, **GANGS):
        lab.submit(scheduling={"gang": "coscheduling"})
        await until(lambda: lab.condition("Stalled").get("reason") == "GangUnavailable")
        assert writes(api) == []


async def test_installation_without_gangs_asks_nothing(api: FakeApi, lab: Lab) -> None:
    async with operator(api):
        lab.submit()
        await lab.until_pods(*FIRST)
        assert not [call for call in api.calls if "scheduling." in call.path]
        assert "podGroup" not in lab.status().get("internal", {})
