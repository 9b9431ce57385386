"""A NetworkPolicy for each job, if enabled: it exists before the first worker, and before each later one."""

from typing import Any

import pytest

from tests.support.fake_api import FakeApi
from tests.support.waiting import until
from tests.unit.controller.conftest import operator
from tests.unit.controller.kubelet import LAB, Lab
from trainyard.controller.reconcile.resources import TRAINING_JOBS
from trainyard.kube.resource import NETWORK_POLICIES, PODS

PROMETHEUS = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
ISOLATED: dict[str, Any] = {"isolate_jobs": True, "job_peers": (PROMETHEUS,)}
FIRST = ("job-worker-0-1", "job-worker-1-1")


@pytest.fixture
def lab(api: FakeApi) -> Lab:
    return Lab(api)


def policies(api: FakeApi) -> list[dict[str, Any]]:
    return list(api.cluster.objects(NETWORK_POLICIES, LAB))


async def test_policy_exists_before_the_first_worker(api: FakeApi, lab: Lab) -> None:
    async with operator(api, **ISOLATED):
        uid = lab.submit()["metadata"]["uid"]
        await lab.until_pods(*FIRST)
        [policy] = policies(api)
        own = {"podSelector": {"matchLabels": {"trainyard.dev/job-uid": uid}}}
        assert policy["spec"] == {**own, "policyTypes": ["Ingress"], "ingress": [{"from": [own, PROMETHEUS]}]}
        made = [call.verb for call in api.writes if call.method == "POST" and "events" not in call.path]
        assert made == ["POST services", "POST networkpolicies", "POST pods", "POST pods"]


async def test_deleted_policy_is_recreated_for_new_workers(api: FakeApi, lab: Lab) -> None:
    async with operator(api, **ISOLATED):
        lab.submit()
        await lab.until_pods(*FIRST)
        lab.runs(*FIRST)
        [policy] = policies(api)
        api.cluster.merge(NETWORK_POLICIES, LAB, "job", {"spec": {"ingress": []}})
        lab.ends(FIRST[0], 1)
        await lab.until_pods("job-worker-0-2", "job-worker-1-2")
        assert policies(api)[0]["spec"]["ingress"] == []
        api.cluster.delete(NETWORK_POLICIES, LAB, "job")
        lab.runs("job-worker-0-2", "job-worker-1-2")
        lab.ends("job-worker-0-2", 1)
        await lab.until_pods("job-worker-0-3", "job-worker-1-3")
        assert policies(api)[0]["spec"] == policy["spec"]


async def test_policy_of_another_owner_blocks_workers(api: FakeApi, lab: Lab) -> None:
    api.cluster.create(NETWORK_POLICIES, LAB, {"metadata": {"name": "job"}, "spec": {"podSelector": {}}})
    async with operator(api, **ISOLATED):
        lab.submit()
        await until(lambda: lab.condition("Running").get("reason") == "NameConflict")
        assert lab.condition("Running")["message"] == "NetworkPolicy job exists and does not belong to this TrainingJob"
        assert lab.pods() == []


async def test_no_worker_is_created_without_policy_permission(api: FakeApi, lab: Lab) -> None:
    message = 'x is forbidden: User "me" cannot create resource "networkpolicies" in API group "networking.k8s.io" in the namespace "lab"'
    api.fault(method="POST", path=".*/networkpolicies", status=403, reason="Forbidden", message=message, times=10_000)
    async with operator(api, **ISOLATED):
        lab.submit()
        await until(lambda: lab.condition("Running").get("reason") == "PermissionDenied")
        assert message in lab.condition("Running")["message"]
        assert not api.cluster.objects(PODS, LAB)


INVALID = 'NetworkPolicy "job" is invalid: spec.ingress[0].from[1].ipBlock.cidr: Invalid value'


async def test_refused_policy_holds_the_job(api: FakeApi, lab: Lab) -> None:
    api.fault(method="POST", path=".*/networkpolicies", status=422, reason="Invalid", message=INVALID, times=10_000)
    async with operator(api, **ISOLATED):
        lab.submit()
        await until(lambda: lab.condition("Running").get("reason") == "NetworkPolicyRejected")
        message = lab.condition("Running")["message"]
        assert "networkPolicy.jobs" in message
        assert INVALID in message
        assert not api.cluster.objects(PODS, LAB)
        assert not lab.condition("Failed")


async def test_existing_policy_of_the_job_suffices(api: FakeApi, lab: Lab) -> None:
    async with operator(api, **ISOLATED):
        lab.submit()
        await lab.until_pods(*FIRST)
        lab.runs(*FIRST)
        api.fault(method="POST", path=".*/networkpolicies", status=422, reason="Invalid", message=INVALID, times=10_000)
        lab.ends(FIRST[0], 1)
        await lab.until_pods("job-worker-0-2", "job-worker-1-2")


async def test_no_policy_unless_enabled(api: FakeApi, lab: Lab) -> None:
    async with operator(api):
        lab.submit()
        await lab.until_pods(*FIRST)
        assert not [call for call in api.calls if "networkpolicies" in call.path]
        assert api.cluster.get(TRAINING_JOBS, LAB, "job")
