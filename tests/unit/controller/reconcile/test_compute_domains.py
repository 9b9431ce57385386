"""A ComputeDomain for a job that wants one: it exists before the first worker."""

import pytest

from tests.support.fake_api import FakeApi
from tests.support.waiting import until
from tests.unit.controller.conftest import operator
from tests.unit.controller.kubelet import LAB, Lab
from trainyard.kube.resource import COMPUTE_DOMAINS, PODS

FIRST = ("job-worker-0-1", "job-worker-1-1")
WANTED: dict[str, dict[str, str]] = {"computeDomain": {}}


@pytest.fixture
def lab(api: FakeApi) -> Lab:
    return Lab(api)


async def test_domain_exists_before_the_first_worker(api: FakeApi, lab: Lab) -> None:
    async with operator(api):
        lab.submit(scheduling=WANTED)
        await lab.until_pods(*FIRST)
        (domain,) = api.cluster.objects(COMPUTE_DOMAINS, LAB)
        channel = domain["spec"]["channel"]["resourceClaimTemplate"]["name"]
        claims = api.cluster.get(PODS, LAB, FIRST[0])["spec"]["resourceClaims"]
        assert claims == [{"name": "compute-domain", "resourceClaimTemplateName": channel}]
        made = [call.verb for call in api.writes if call.method == "POST" and "events" not in call.path]
        assert made == ["POST services", "POST computedomains", "POST pods", "POST pods"]


async def test_next_attempt_keeps_the_domain(api: FakeApi, lab: Lab) -> None:
    async with operator(api):
        lab.submit(scheduling=WANTED)
        await lab.until_pods(*FIRST)
        (domain,) = api.cluster.objects(COMPUTE_DOMAINS, LAB)
        lab.runs(*FIRST)
        lab.ends(FIRST[0], 1)
        await lab.until_pods("job-worker-0-2", "job-worker-1-2")
        assert api.cluster.objects(COMPUTE_DOMAINS, LAB) == [domain]


async def test_cluster_without_the_driver_holds_the_job(api: FakeApi, lab: Lab) -> None:
    missing = "the server could not find the requested resource"
    api.fault(method="POST", path=".*/computedomains", status=404, reason="NotFound", message=missing, times=10_000)
    async with operator(api):
        lab.submit(scheduling=WANTED)
        await until(lambda: lab.condition("Running").get("reason") == "ComputeDomainRejected")
        message = lab.condition("Running")["message"]
        assert "install NVIDIA's DRA driver, or leave scheduling.computeDomain out" in message
        assert lab.pods() == []


async def test_no_domain_by_default(api: FakeApi, lab: Lab) -> None:
    async with operator(api):
        lab.submit()
        await lab.until_pods(*FIRST)
        assert not [call for call in api.calls if "computedomains" in call.path]
