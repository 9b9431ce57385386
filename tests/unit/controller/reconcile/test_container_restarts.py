"""The dry run that shows whether a cluster has rules by which containers start anew."""

import logging
from typing import Any

import pytest

from tests.support.fake_api import FakeApi
from tests.support.jobs import SUPERVISED, job
from tests.support.worker_pods import container, worker
from trainyard.api.status import TrainingJobStatus
from trainyard.controller.reconcile import container_restarts
from trainyard.controller.reconcile.caches import Caches
from trainyard.controller.reconcile.container_restarts import (
    KNOWN_SECONDS,
    UNKNOWN_SECONDS,
    ContainerRestarts,
)
from trainyard.controller.reconcile.executor import Executor
from trainyard.domain.actions import CreateWorker, Plan
from trainyard.engine.tracker import WriteTracker
from trainyard.frameworks.agent_wrapper import AgentImage
from trainyard.frameworks.coordinator_endpoint import CoordinatorEndpoint
from trainyard.frameworks.manifests import worker_pod
from trainyard.kube.apply import Writer
from trainyard.kube.errors import ApiError
from trainyard.kube.resource import PODS

TRAIN = container(command=["python", "train.py"])
UNKNOWN = 'Pod "x" is invalid: spec.containers[0].restartPolicy: Forbidden: may not be set for non-init containers'
NO_ALL = (
    'Pod "x" is invalid: spec.containers[0].restartPolicyRules[0].action: Unsupported value: "RestartAllContainers"'
)


def pod(*containers: dict[str, Any]) -> dict[str, Any]:
    return worker_pod(worker(*containers), AgentImage("operator:1"), CoordinatorEndpoint("https://trainyard:8443"))


class Asking:
    """A cluster that is asked, at a time that is set."""

    def __init__(self, api: FakeApi) -> None:
        self.api, self.now = api, 0.0
        self.restarts = ContainerRestarts(Writer(api.session()), lambda: self.now)

    async def action(self, manifest: dict[str, Any]) -> str | None:
        """What the granted pod has start anew; and nothing was stored."""
        granted = await self.restarts.granted("lab", manifest)
        assert self.api.cluster.objects(PODS, "lab") == []
        rules = granted["spec"]["containers"][0].get("restartPolicyRules")
        return str(rules[0]["action"]) if rules else None


@pytest.fixture
def asking(api: FakeApi) -> Asking:
    return Asking(api)


async def test_a_cluster_that_has_them_is_asked_once_for_each(asking: Asking, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    assert await asking.action(pod(TRAIN)) == "Restart"
    assert await asking.action(pod(TRAIN, container("logs"))) == "RestartAllContainers"
    with asking.api.no_calls():
        assert await asking.action(pod(TRAIN)) == "Restart"
    assert "this cluster has Restart among its rules for containers" in caplog.text
    asking.now = KNOWN_SECONDS
    await asking.action(pod(TRAIN))
    assert [call.verb for call in asking.api.writes] == ["POST pods"] * 3
    assert {call.query["dryRun"] for call in asking.api.writes} == {"All"}


async def test_one_that_refuses_or_drops_them_gets_pods_without(asking: Asking) -> None:
    """What is refused with the rule is tried without: then it is the rule that the cluster does not take."""
    asking.api.fault(method="POST", status=422, reason="Invalid", message=UNKNOWN)
    manifest = pod(TRAIN)
    assert await asking.action(manifest) is None
    with asking.api.no_calls():
        assert await asking.restarts.granted("lab", manifest) == manifest
    asking.now = KNOWN_SECONDS
    asking.api.fault(method="POST", text='{"metadata": {}, "spec": {"containers": [{"name": "main"}]}}')
    assert await asking.action(manifest) is None


async def test_one_that_has_the_older_rule_alone_gets_that(asking: Asking) -> None:
    asking.api.fault(method="POST", status=422, reason="Invalid", message=NO_ALL)
    assert await asking.action(pod(TRAIN, container("logs"))) == "Restart"


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param({"status": 403, "reason": "Forbidden", "message": "exceeded quota: gpus"}, id="quota"),
        pytest.param({"status": 422, "reason": "Invalid", "message": "spec.volumes[0]: Required value"}, id="invalid"),
        pytest.param(
            {"status": 422, "reason": "Invalid", "message": UNKNOWN}, id="what the user says of restartPolicy"
        ),
        pytest.param({"status": 409, "reason": "AlreadyExists", "message": "it exists"}, id="exists"),
        pytest.param({"drop": True}, id="no answer"),
        pytest.param({"text": "[]"}, id="nonsense"),
        pytest.param({"text": "{}"}, id="nothing"),
    ],
)
async def test_what_does_not_come_to_it_is_asked_again_after_a_while(asking: Asking, fault: dict[str, Any]) -> None:
    """In that namespace: what is in the way there is nothing to the others."""
    for _ in range(2):
        asking.api.fault(method="POST", **fault)
    assert await asking.action(pod(TRAIN)) is None
    with asking.api.no_calls():
        assert await asking.action(pod(TRAIN)) is None
    granted = await asking.restarts.granted("other", pod(TRAIN))
    assert "restartPolicyRules" in granted["spec"]["containers"][0]
    asking.now = UNKNOWN_SECONDS
    assert await asking.action(pod(TRAIN)) == "Restart"


async def test_a_pod_that_has_no_use_for_them_costs_no_request(asking: Asking) -> None:
    with asking.api.no_calls():
        assert await asking.action(pod(container())) is None


@pytest.mark.parametrize(
    ("status", "message", "without"),
    [
        (422, "restartPolicyRules[0].action: Unsupported value", True),
        (403, "ValidatingAdmissionPolicy 'no-rules' denied request", True),
        (403, "exceeded quota: gpus", False),
        (500, "later", False),
        (409, "it exists", False),
    ],
)
async def test_a_pod_that_is_refused_with_a_rule_is_made_without(
    asking: Asking, status: int, message: str, *, without: bool
) -> None:
    """By an API server of an older release, or a policy of the namespace."""
    assert await asking.action(pod(TRAIN)) == "Restart"
    assert asking.restarts.refused("lab", ApiError(status, "Reason", message)) is without
    with asking.api.no_calls():
        assert (await asking.action(pod(TRAIN)) is None) is without


async def test_namespaces_that_are_gone_are_forgotten(asking: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container_restarts, "MOST_NAMESPACES", 2)
    for name in ("a", "b", "c"):
        asking.restarts.refused(name, ApiError(403, "Forbidden", "no"))
        asking.now += KNOWN_SECONDS
    assert [*asking.restarts._without] == ["c"]


async def test_no_worker_is_in_want_of_a_rule(api: FakeApi) -> None:
    writer = Writer(api.session())
    rules = ContainerRestarts(writer)
    await rules.granted("ns", pod(TRAIN))
    contact = CoordinatorEndpoint("https://trainyard:8443")
    executor = Executor(writer, WriteTracker(), Caches.empty(), rules, AgentImage("operator:1"), lambda: contact)
    api.fault(
        method="POST", status=403, reason="Forbidden", message="policy 'no-rules' denied request: rules are not allowed"
    )
    made = await executor.carry_out(job(1, template=SUPERVISED).job, Plan(TrainingJobStatus(), [CreateWorker(0, 1, 1)]))
    assert (made.refusal, made.changed) == (None, True)
    [worker_] = api.cluster.objects(PODS, "ns")
    assert "restartPolicyRules" not in worker_["spec"]["containers"][0]
