"""What keeps a job from starting or training on, on a real API server: a webhook, a quota, a deleted pod, a namesake."""

from collections.abc import Iterator

import pytest

from tests.api.nodes import MERGE, Namespace
from tests.api.plane import Plane
from tests.api.process import operator
from tests.support.polling import until

HOOKS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
QUOTAS = "/api/v1/namespaces/lab/resourcequotas"
DOWN = {
    "metadata": {"name": "down"},
    "webhooks": [
        {
            "name": "pods.down.example.com",
            "failurePolicy": "Fail",
            "sideEffects": "None",
            "timeoutSeconds": 2,
            "admissionReviewVersions": ["v1"],
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "lab"}},
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
            "clientConfig": {"service": {"namespace": "lab", "name": "nobody", "path": "/validate"}},
        }
    ],
}


@pytest.fixture
def running(plane: Plane, lab: Namespace, granted: None) -> Iterator[Namespace]:
    with operator(plane, "obstacles", leader_election="false"):
        yield lab
    for name in ("held", "gone"):
        lab.remove(name)


def test_webhook_that_is_down_is_named(plane: Plane, running: Namespace) -> None:
    plane.call("POST", HOOKS, DOWN)
    try:
        running.submit("held")
        until(lambda: running.condition("Running", "held").get("reason") == "WebhookFailed", 30, "the condition")
        assert "failed calling webhook" in running.condition("Running", "held")["message"]
        assert running.status("held")["phase"] == "Pending"
        until(lambda: running.events("WebhookFailed", "held"), 10, "the event")
    finally:
        plane.forget(f"{HOOKS}/down")
    running.until_phase("Running", "held", within=60)
    assert running.status("held")["restarts"]["failures"] == 0
    assert len(running.events("WebhookFailed", "held")) == 1


def test_succeeded_worker_whose_pod_is_deleted_stays_succeeded(running: Namespace, plane: Plane) -> None:
    running.submit("gone")
    running.until_phase("Running", "gone")
    uid = running.pods("gone")["gone-worker-1-1"]["metadata"]["uid"]
    running.ends("gone-worker-0-1", 0)
    until(lambda: running.status("gone").get("internal", {}).get("succeeded"), 10, "the success to be stored")
    plane.forget("/api/v1/namespaces/lab/pods/gone-worker-0-1")
    until(lambda: running.status("gone")["replicas"] == 1, 20, "the pod to be gone")
    status = running.status("gone")
    assert (status["attempt"], status["ready"], status["phase"]) == (1, "2/2", "Running")
    assert running.pods("gone")["gone-worker-1-1"]["metadata"]["uid"] == uid
    running.ends("gone-worker-1-1", 0)
    running.until_phase("Complete", "gone")
    assert running.status("gone")["restarts"] == {"failures": 0, "disruptions": 0, "resizes": 0}


def test_quota_that_wants_limits_names_the_container(plane: Plane, running: Namespace) -> None:
    hard = {"hard": {"limits.cpu": "8", "requests.memory": "8Gi"}}
    plane.call("POST", QUOTAS, {"metadata": {"name": "team"}, "spec": hard})
    try:
        # There is no controller of quotas here.
        used = {"hard": hard["hard"], "used": dict.fromkeys(hard["hard"], "0")}
        plane.call("PATCH", f"{QUOTAS}/team/status", {"status": used}, MERGE)
        running.submit("held")
        until(lambda: "limits.cpu" in running.condition("Running", "held").get("message", ""), 30, "the condition")
        assert running.condition("Running", "held")["message"].startswith(
            "ResourceQuota team needs limits.cpu and requests.memory of container main of spec.template"
        )
    finally:
        plane.forget(f"{QUOTAS}/team")
    running.until_phase("Running", "held", within=60)


def test_job_that_is_applied_again_gets_no_warning(running: Namespace) -> None:
    running.submit("held")
    running.until_phase("Running", "held")
    running.remove("held")
    running.submit("held")
    running.until_phase("Running", "held", within=60)
    assert running.events("NameConflict", "held") == []
