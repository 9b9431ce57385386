"""Network profiles through the whole operator: pods, events, and the condition of a job whose profile cannot be used."""

from typing import Any

import pytest

from tests.support.fake_api import FakeApi
from tests.support.network_pods import GPUS
from tests.support.waiting import until
from tests.unit.controller.conftest import operator
from tests.unit.controller.kubelet import LAB, Lab
from trainyard.domain.status import pod_rejections
from trainyard.kube.resource import EVENTS, PODS
from trainyard.scheduling.network_profile import NetworkProfile

FIRST = ("job-worker-0-1", "job-worker-1-1")


@pytest.fixture
def lab(api: FakeApi) -> Lab:
    return Lab(api)


def template(**main: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "main", "image": "trainer:1", "resources": GPUS, **main}]}}


def notes(api: FakeApi, reason: str) -> list[str]:
    return [event["note"] for event in api.cluster.objects(EVENTS, LAB) if event["reason"] == reason]


async def test_profile_is_set_and_reported(api: FakeApi, lab: Lab) -> None:
    env = [{"name": "NCCL_SOCKET_IFNAME", "value": "ens5"}]
    async with operator(api):
        lab.submit(network={"profile": "efa"}, template=template(env=env))
        await until(lambda: notes(api, "NetworkProfileConflict"))
        [first, _] = api.cluster.objects(PODS, LAB)
        assert first["spec"]["containers"][0]["resources"]["limits"]["vpc.amazonaws.com/efa"] == "1"
        assert first["metadata"]["annotations"]["trainyard.dev/network-profile"].startswith("efa@")
        [applied] = notes(api, "NetworkProfileApplied")
        assert applied.startswith("network.profile efa sets vpc.amazonaws.com/efa: 1, hugepages-2Mi: 5120Mi, GLOO_")
        [kept] = notes(api, "NetworkProfileConflict")
        assert kept.startswith("the template keeps NCCL_SOCKET_IFNAME=ens5, where network.profile efa has other values")


async def test_job_without_a_profile_gets_no_event(api: FakeApi, lab: Lab) -> None:
    async with operator(api):
        lab.submit(template=template())
        await until(lambda: notes(api, "WorkersCreated"))
    assert notes(api, "NetworkProfileApplied") == []
    assert all("network" not in str(pod) for pod in api.cluster.objects(PODS, LAB))


async def test_unknown_profile_holds_the_job(api: FakeApi, lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_rejections, "RETRY_AFTER", 0.1)
    async with operator(api):
        lab.submit(network={"profile": "site"})
        await until(lambda: lab.condition("Running").get("reason") == "NetworkProfileUnusable")
        assert "knows no network.profile site" in lab.condition("Running")["message"]
        await until(lambda: len(notes(api, "NetworkProfileUnusable")) == 1)
        assert lab.pods() == []
    profile = NetworkProfile.model_validate({"base": "rdma", "interface": "net1"})
    async with operator(api, network_profiles={"site": profile}):
        await lab.until_pods(*FIRST)
    [first, _] = api.cluster.objects(PODS, LAB)
    assert {"name": "NCCL_SOCKET_IFNAME", "value": "net1"} in first["spec"]["containers"][0]["env"]
    assert len(notes(api, "NetworkProfileUnusable")) == 1


async def test_policy_against_the_profile_is_explained(api: FakeApi, lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_rejections, "RETRY_AFTER", 0.1)
    message = (
        'pods "x" is forbidden: violates PodSecurity "baseline:latest": non-default capabilities (container "main")'
    )
    api.fault(method="POST", path=".*/pods", status=403, reason="Forbidden", message=message, times=4)
    async with operator(api):
        lab.submit(network={"profile": "rdma"})
        await until(lambda: lab.condition("Running").get("reason") == "PodsForbidden")
        held = lab.condition("Running")["message"]
        assert held.startswith(
            "network.profile rdma adds the capability IPC_LOCK, which the baseline standard refuses: "
        )
        assert held.endswith(message)
        await lab.until_pods(*FIRST)
        lab.runs(*FIRST)
        await lab.until_phase("Running")
    assert len(notes(api, "PodsForbidden")) == 1


async def test_invalid_profile_of_the_chart_fails_no_job(api: FakeApi, lab: Lab) -> None:
    message = 'Pod "x" is invalid: spec.volumes[0].configMap.name: Required value'
    api.fault(method="POST", path=".*/pods", status=422, reason="Invalid", message=message, times=10_000)
    profile = NetworkProfile.model_validate({"volumes": [{"name": "topology", "configMap": {}}]})
    async with operator(api, network_profiles={"site": profile}):
        lab.submit(network={"profile": "site"})
        await until(lambda: lab.condition("Running").get("reason") == "NetworkProfileUnusable")
        assert lab.condition("Running")["message"].endswith(f"networkProfiles.site of the chart: {message}")
        lab.submit("plain", network={"profile": "tcp"})
        await lab.until_phase("Failed", "plain")
    assert lab.status()["phase"] == "Pending"


async def test_replacement_after_a_changed_profile_restarts_all(api: FakeApi, lab: Lab) -> None:
    async with operator(api):
        lab.submit(network={"profile": "tcp"})
        await lab.until_pods(*FIRST)
        lab.runs(*FIRST)
        await lab.until_phase("Running")
    profile = NetworkProfile.model_validate({"env": {"NCCL_NTHREADS": "256"}})
    async with operator(api, network_profiles={"tcp": profile}):
        lab.ends(FIRST[0], 1)
        await lab.until_pods("job-worker-0-2", "job-worker-1-2")
    stamps = {p["metadata"]["annotations"]["trainyard.dev/network-profile"] for p in api.cluster.objects(PODS, LAB)}
    assert len(stamps) == 1
