"""The dry run that shows whether a cluster supports restarts of containers."""

import json
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
    ANSWER_VALID_SECONDS,
    FAILED_PROBE_SKIP_SECONDS,
    ContainerRestartSupport,
)
from trainyard.controller.reconcile.executor import Executor
from trainyard.domain.decisions import CreateWorker, Plan
from trainyard.engine.tracker import WriteTracker
from trainyard.frameworks.agent_wrapper import AgentImage
from trainyard.frameworks.coordinator_endpoint import CoordinatorEndpoint
from trainyard.frameworks.manifests import worker_pod
from trainyard.frameworks.restart_rules import RestartAction, with_restart_rule
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
    """A cluster that is probed at a chosen time."""

    def __init__(self, api: FakeApi) -> None:
        self.api, self.now = api, 0.0
        self.restarts = ContainerRestartSupport(Writer(api.session()), lambda: self.now)

    async def action(self, manifest: dict[str, Any]) -> str | None:
        """Return the restart rule of the resulting pod, and check that nothing was stored."""
        granted = await self.restarts.with_supported_rule("lab", manifest)
        assert self.api.cluster.objects(PODS, "lab") == []
        rules = granted["spec"]["containers"][0].get("restartPolicyRules")
        return str(rules[0]["action"]) if rules else None


@pytest.fixture
def asking(api: FakeApi) -> Asking:
    return Asking(api)


async def test_supporting_cluster_is_probed_once_per_rule(asking: Asking, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    assert await asking.action(pod(TRAIN)) == "Restart"
    assert await asking.action(pod(TRAIN, container("logs"))) == "RestartAllContainers"
    with asking.api.no_calls():
        assert await asking.action(pod(TRAIN)) == "Restart"
    assert "probed the cluster for a container restart rule rule=Restart supported=true" in caplog.text
    asking.now = ANSWER_VALID_SECONDS
    await asking.action(pod(TRAIN))
    assert [call.verb for call in asking.api.writes] == ["POST pods"] * 3
    assert {call.query["dryRun"] for call in asking.api.writes} == {"All"}


async def test_unsupported_rules_are_left_out(asking: Asking) -> None:
    """A pod that is refused with the rule is tried without it. If that passes, the cluster does not support the rule."""
    asking.api.fault(method="POST", status=422, reason="Invalid", message=UNKNOWN)
    manifest = pod(TRAIN)
    assert await asking.action(manifest) is None
    with asking.api.no_calls():
        assert await asking.restarts.with_supported_rule("lab", manifest) == manifest
    asking.now = ANSWER_VALID_SECONDS
    asking.api.fault(method="POST", text='{"metadata": {}, "spec": {"containers": [{"name": "main"}]}}')
    assert await asking.action(manifest) is None


async def test_rule_is_found_behind_a_container_of_admission(asking: Asking) -> None:
    answer = with_restart_rule(pod(TRAIN), RestartAction.CONTAINER)
    answer["spec"]["containers"].insert(0, {"name": "proxy"})
    asking.api.fault(method="POST", text=json.dumps(answer))
    assert await asking.action(pod(TRAIN)) == "Restart"


async def test_older_rule_is_used_if_supported(asking: Asking) -> None:
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
async def test_inconclusive_probe_is_repeated_later(asking: Asking, fault: dict[str, Any]) -> None:
    """Only in that namespace: an obstacle there does not affect others."""
    for _ in range(2):
        asking.api.fault(method="POST", **fault)
    assert await asking.action(pod(TRAIN)) is None
    with asking.api.no_calls():
        assert await asking.action(pod(TRAIN)) is None
    granted = await asking.restarts.with_supported_rule("other", pod(TRAIN))
    assert "restartPolicyRules" in granted["spec"]["containers"][0]
    asking.now = FAILED_PROBE_SKIP_SECONDS
    assert await asking.action(pod(TRAIN)) == "Restart"


async def test_unsuitable_pod_causes_no_probe(asking: Asking) -> None:
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
async def test_pod_refused_with_rule_is_created_without(
    asking: Asking, status: int, message: str, *, without: bool
) -> None:
    """By an older API server, or by a policy of the namespace."""
    assert await asking.action(pod(TRAIN)) == "Restart"
    assert asking.restarts.retries_without_rule("lab", ApiError(status, "Reason", message)) is without
    with asking.api.no_calls():
        assert (await asking.action(pod(TRAIN)) is None) is without


async def test_expired_namespaces_are_forgotten(asking: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container_restarts, "MAX_SKIPPED_NAMESPACES", 2)
    for name in ("a", "b", "c"):
        asking.restarts.retries_without_rule(name, ApiError(403, "Forbidden", "no"))
        asking.now += ANSWER_VALID_SECONDS
    assert [*asking.restarts._skipped_until] == ["c"]


async def test_worker_is_created_without_rule_after_refusal(api: FakeApi) -> None:
    writer = Writer(api.session())
    rules = ContainerRestartSupport(writer)
    await rules.with_supported_rule("ns", pod(TRAIN))
    contact = CoordinatorEndpoint("https://trainyard:8443")
    executor = Executor(writer, WriteTracker(), Caches.empty(), rules, AgentImage("operator:1"), lambda: contact)
    api.fault(
        method="POST", status=403, reason="Forbidden", message="policy 'no-rules' denied request: rules are not allowed"
    )
    made = await executor.execute(job(1, template=SUPERVISED).job, Plan(TrainingJobStatus(), [CreateWorker(0, 1, 1)]))
    assert (made.refusal, made.changed) == (None, True)
    [worker_] = api.cluster.objects(PODS, "ns")
    assert "restartPolicyRules" not in worker_["spec"]["containers"][0]
