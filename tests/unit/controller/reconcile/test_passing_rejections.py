"""What the API server rejects for a reason that passes: it is named once, and the job goes on without a charge."""

import pytest

from tests.support.fake_api import FakeApi
from tests.support.waiting import until
from tests.unit.controller.conftest import operator
from tests.unit.controller.kubelet import LAB, Lab
from trainyard.domain.status import pod_rejections
from trainyard.kube.resource import EVENTS, PODS


@pytest.fixture
def lab(api: FakeApi) -> Lab:
    return Lab(api)


def reasons(api: FakeApi) -> list[str]:
    return [event["reason"] for event in api.cluster.objects(EVENTS, LAB)]


@pytest.mark.parametrize("path", [".*/pods", ".*/services"])
async def test_failing_webhook_is_named_until_it_is_gone(
    api: FakeApi, lab: Lab, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr(pod_rejections, "RETRY_AFTER", 0.2)
    message = (
        'Internal error occurred: failed calling webhook "pods.example.com": failed to call webhook: Post '
        '"https://policy.lab.svc:443/validate?timeout=2s": service "policy" not found'
    )
    api.fault(method="POST", path=path, status=500, reason="InternalError", message=message, times=6)
    async with operator(api):
        lab.submit()
        await until(lambda: lab.condition("Running").get("reason") == "WebhookFailed")
        assert lab.status()["message"].startswith(
            "admission webhook pods.example.com fails; an administrator must repair it"
        )
        assert (lab.status()["phase"], message in lab.condition("Running")["message"]) == ("Pending", True)
        await lab.until_pods("job-worker-0-1", "job-worker-1-1")
        lab.runs("job-worker-0-1", "job-worker-1-1")
        await lab.until_phase("Running")
        assert reasons(api).count("WebhookFailed") == 1
    assert (lab.status()["attempt"], lab.status()["restarts"]["failures"]) == (1, 0)


async def test_webhook_on_the_status_is_reported_by_event(api: FakeApi, lab: Lab) -> None:
    message = 'Internal error occurred: failed calling webhook "all.example.com": no endpoints available'
    api.fault(method="PUT", path=".*/status", status=500, reason="InternalError", message=message, times=3)
    async with operator(api):
        lab.submit()
        await until(lambda: "WebhookFailed" in reasons(api))
        await lab.until_phase("Pending")


async def test_reapplied_job_waits_without_a_warning(api: FakeApi, lab: Lab) -> None:
    """The objects of the deleted job of the same name go a moment later."""
    owner = {"apiVersion": "trainyard.dev/v1alpha1", "kind": "TrainingJob", "name": "job", "uid": "deleted"}
    metadata = {"name": "job-worker-0-1", "ownerReferences": [{**owner, "controller": True}]}
    api.cluster.create(PODS, LAB, {"metadata": metadata})
    async with operator(api):
        lab.submit()
        await until(lambda: lab.condition("Running").get("reason") == "NameConflict")
        assert lab.condition("Running")["message"] == (
            "waiting for Pod job-worker-0-1 of the deleted TrainingJob of the same name to be deleted"
        )
        api.cluster.delete(PODS, LAB, "job-worker-0-1")
        await lab.until_pods("job-worker-0-1", "job-worker-1-1")
        await until(lambda: "WorkersCreated" in reasons(api))
    assert "NameConflict" not in reasons(api)


@pytest.mark.parametrize("status", [409, 429, 500, 503])
async def test_webhook_that_denies_with_retryable_status_is_named(api: FakeApi, lab: Lab, status: int) -> None:
    message = 'admission webhook "validation.gatekeeper.sh" denied the request: the cache is not synced'
    api.fault(method="POST", path=".*/pods", status=status, reason="InternalError", message=message, times=1000)
    async with operator(api):
        lab.submit()
        await until(lambda: lab.condition("Running").get("reason") == "PodsForbidden")
    assert message in lab.condition("Running")["message"]
    assert reasons(api).count("PodsForbidden") == 1
