"""The Workload of a job through the whole operator: it asks for the pods that are created later."""

from typing import Any

import pytest

from tests.support.fake_api import FakeApi
from tests.support.network_pods import GPUS
from tests.support.waiting import until
from tests.unit.controller.conftest import operator
from tests.unit.controller.kubelet import LAB, Lab
from trainyard.api.scheduling import GangScheduler as G
from trainyard.controller.reconcile.gang_discovery import pod_groups
from trainyard.kube.resource import PODS, PRIORITY_CLASSES, WORKLOADS

VOLCANO = pod_groups(G.VOLCANO)
SERVED = {"kind": "APIResourceList", "resources": [{"name": "podgroups"}]}
INSTALLED: dict[str, Any] = {"kueue": True, "gang_schedulers": (G.VOLCANO,)}
TRUE = {"status": "True", "reason": "Because", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}
FIRST = ("job-worker-0-1", "job-worker-1-1")


@pytest.fixture
def lab(api: FakeApi) -> Lab:
    api.served["/apis/scheduling.volcano.sh/v1beta1"] = SERVED
    return Lab(api)


def template(**fields: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "main", "image": "trainer:1", "resources": GPUS}], **fields}}


def workloads(api: FakeApi) -> list[dict[str, Any]]:
    return list(api.cluster.objects(WORKLOADS, LAB))


def admit(api: FakeApi) -> None:
    [workload] = workloads(api)
    conditions = [{"type": kind, **TRUE} for kind in ("QuotaReserved", "Admitted")]
    admission = {"clusterQueue": "all", "podSetAssignments": [{"name": "worker", "count": 2, "flavors": {}}]}
    name = workload["metadata"]["name"]
    api.cluster.set_status(WORKLOADS, LAB, name, conditions=conditions, admission=admission)


async def test_workload_asks_for_the_later_pods(api: FakeApi, lab: Lab) -> None:
    topology = {"key": "topology.kubernetes.io/zone"}
    scheduling = {"queue": "team", "priorityClassName": "high", "topology": topology, "computeDomain": {}}
    api.cluster.create(PRIORITY_CLASSES, "", {"metadata": {"name": "high"}, "value": 7})
    async with operator(api, **INSTALLED):
        lab.submit(network={"profile": "efa"}, scheduling=scheduling, template=template())
        await until(lambda: workloads(api))
        [asked] = workloads(api)[0]["spec"]["podSets"]
        assert lab.pods() == []
        admit(api)
        await lab.until_pods(*FIRST)
    [pod, _] = api.cluster.objects(PODS, LAB)
    wanted, made = asked["template"]["spec"], pod["spec"]
    assert {name: made.get(name) for name in wanted if name != "containers"} == {
        name: value for name, value in wanted.items() if name != "containers"
    }
    assert wanted["containers"][0]["resources"] == made["containers"][0]["resources"]
    assert (wanted["schedulerName"], wanted["priorityClassName"]) == ("volcano", "high")
    assert wanted["containers"][0]["resources"]["limits"]["vpc.amazonaws.com/efa"] == "1"
    assert [claim["name"] for claim in wanted["resourceClaims"]] == ["compute-domain"]
    labels = asked["template"]["metadata"]["labels"]
    assert labels.items() <= pod["metadata"]["labels"].items()
    [near] = wanted["affinity"]["podAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert near["podAffinityTerm"]["labelSelector"]["matchLabels"].items() <= labels.items()


async def test_unusable_network_profile_asks_for_no_quota(api: FakeApi, lab: Lab) -> None:
    async with operator(api, **INSTALLED):
        lab.submit(network={"profile": "site"}, scheduling={"queue": "team"})
        await until(lambda: lab.condition("Stalled").get("reason") == "NetworkProfileUnusable")
        assert workloads(api) == []


async def test_queue_of_volcano_makes_no_workload(api: FakeApi, lab: Lab) -> None:
    async with operator(api, **INSTALLED):
        lab.submit(scheduling={"queue": "research"}, template=template(schedulerName="volcano"))
        await lab.until_pods(*FIRST)
        [group] = api.cluster.objects(VOLCANO, LAB)
        assert (group["spec"]["queue"], workloads(api)) == ("research", [])


async def test_queue_of_kueue_is_none_of_volcano(api: FakeApi, lab: Lab) -> None:
    async with operator(api, **INSTALLED):
        lab.submit(scheduling={"queue": "team"}, template=template())
        await until(lambda: workloads(api))
        admit(api)
        await lab.until_pods(*FIRST)
        [group] = api.cluster.objects(VOLCANO, LAB)
        assert (workloads(api)[0]["spec"]["queueName"], "queue" in group["spec"]) == ("team", False)
