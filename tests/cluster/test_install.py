"""The chart on a real cluster: least privilege, probes, metrics, and an uninstall that blocks nothing."""

import json

import pytest

from dev.demo import install
from tests.cluster.kube import Kube, job

CERTIFICATE = "trainyard-coordinator-cert"
ACCOUNT = f"system:serviceaccount:{install.NAMESPACE}:trainyard"


@pytest.fixture
def operator(kube: Kube) -> Kube:
    return kube.other(install.NAMESPACE)


@pytest.mark.parametrize(
    ("verb", "what", "allowed"),
    [
        ("create", "pods", True),
        ("update", "trainingjobs.trainyard.dev/status", True),
        ("get", "secrets", False),
        ("list", "secrets", False),
        ("create", "pods/exec", False),
        ("patch", "trainingjobs.trainyard.dev", False),
        ("create", "clusterrolebindings", False),
        ("delete", "nodes", False),
        ("*", "*", False),
    ],
)
def test_least_privilege(kube: Kube, verb: str, what: str, *, allowed: bool) -> None:
    resource, _, sub = what.partition("/")
    command = ["auth", "can-i", verb, resource, "--as", ACCOUNT, *([f"--subresource={sub}"] if sub else [])]
    if allowed:
        assert kube.run(*command).strip() == "yes"
    else:
        # `can-i` says no by its exit code; RBAC's answer is all that it prints.
        assert "no" in kube.refused(*command)


@pytest.mark.parametrize(
    ("verb", "secret", "allowed"),
    [
        ("get", CERTIFICATE, True),
        ("update", CERTIFICATE, True),
        ("delete", CERTIFICATE, False),
        ("get", "trainyard-coordinator-tls", False),
    ],
)
def test_one_secret_is_accessible(operator: Kube, verb: str, secret: str, *, allowed: bool) -> None:
    command = ["auth", "can-i", verb, f"secrets/{secret}", "--as", ACCOUNT]
    if allowed:
        assert operator.run(*command).strip() == "yes"
    else:
        assert "no" in operator.refused(*command)


def test_the_operator_is_restricted(operator: Kube) -> None:
    for pod in operator.find_all("pods", "app.kubernetes.io/name=trainyard"):
        context = pod["spec"]["containers"][0]["securityContext"]
        assert context["readOnlyRootFilesystem"] is True
        assert context["allowPrivilegeEscalation"] is False
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert pod["spec"]["securityContext"]["runAsNonRoot"] is True


def test_an_upgrade_keeps_the_certificate_that_workers_know(operator: Kube) -> None:
    before = operator.get("secret", CERTIFICATE)["data"]
    install.install(operator.cluster)
    assert operator.get("secret", CERTIFICATE)["data"] == before
    assert set(before) == {"tls.crt", "tls.key", "ca.crt", "ca.key"}


def test_two_operators_run_on_two_nodes(operator: Kube) -> None:
    pods = operator.find_all("pods", "app.kubernetes.io/name=trainyard")
    going = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
    assert len(going) == 2
    assert len({pod["spec"]["nodeName"] for pod in going}) == 2


def test_probes_and_metrics_answer(operator: Kube) -> None:
    base = f"/api/v1/namespaces/{install.NAMESPACE}/pods/{operator.leader()}:8081/proxy"
    assert operator.run("get", "--raw", f"{base}/healthz").strip() == "ok"
    ready, _, standing = operator.run("get", "--raw", f"{base}/readyz").partition("\n")
    assert ready == "ok"
    assert "leader" in standing
    # Of the one that acts: jobs are counted by that one alone.
    pod = f"/api/v1/namespaces/{install.NAMESPACE}/pods/{operator.leader()}:8080/proxy"
    metrics = operator.run("get", "--raw", f"{pod}/metrics")
    for family in (
        "trainyard_jobs{",
        "workqueue_depth{",
        "controller_runtime_reconcile_total{",
        "rest_client_requests_total{",
    ):
        assert family in metrics


def test_json_logs_name_the_job_and_attempt(kube: Kube, operator: Kube) -> None:
    kube.apply(job(script="exit 0"))
    kube.wait_phase("job", "Complete")
    lines = [json.loads(line) for line in operator.run("logs", *install.OPERATORS, "--tail=-1").splitlines()]
    mine = [line for line in lines if line["job"] == f"{kube.namespace}/job"]
    assert {line["attempt"] for line in mine} == {1}
    assert any("WorkersSucceeded" in line["message"] for line in mine)


def test_it_works_where_pod_security_is_restricted(operator: Kube) -> None:
    label = "pod-security.kubernetes.io/enforce=restricted"
    output = operator.run("label", "namespace", install.NAMESPACE, label, "--overwrite", "--dry-run=server")
    assert "warning" not in output.lower()


def test_helm_test_trains_and_removes_a_job(operator: Kube) -> None:
    output = operator.cluster.helm_command("test", install.RELEASE, "--namespace", operator.namespace, "--logs")
    assert "created TrainingJob" in output
    assert "the job completed: the installation works" in output
    assert "Phase:          Succeeded" in output
    assert not operator.find_all("tj")
    operator.run("delete", "pod", "trainyard-helm-test")


def test_uninstall_with_live_jobs(kube: Kube) -> None:
    """Uninstall the operator for a moment."""
    kube.apply(job(replicas=3))
    kube.wait_phase("job", "Running")
    before = sorted(p["metadata"]["uid"] for p in kube.pods("job"))
    install.uninstall(kube.cluster)
    try:
        assert sorted(p["metadata"]["uid"] for p in kube.pods("job")) == before, "training continues"
        assert kube.phase("job") == "Running", "the CRD and its objects stay"
        kube.run("delete", "tj", "job", "--timeout=30s")
        kube.until(lambda: not kube.pods("job"), 60, "nothing blocks without the operator")
    finally:
        install.install(kube.cluster)
