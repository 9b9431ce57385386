"""A hostile tenant, and a thief of the operator's token, on a real API server with the chart's admission policies."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.api.guard import (
    AUTHOR,
    EXEMPT,
    GUARDED,
    HARMLESS,
    MERGE,
    OPERATOR,
    TENANT,
    Json,
    guard,
    job,
    refused_object,
    refused_pod,
    worker,
)
from tests.api.plane import HOME, JOBS, Plane
from tests.support.control_plane import RefusedError
from tests.unit.helm.chart import Chart

PODS = f"/api/v1/namespaces/{GUARDED}/pods"
LABELS: Json = {"trainyard.dev/job-name": "job", "trainyard.dev/job-uid": "1", "trainyard.dev/index": "0"}


@pytest.fixture(scope="module")
def guarded(plane: Plane, chart: Chart) -> Iterator[Plane]:
    with guard(plane, chart) as made:
        yield made


@pytest.mark.parametrize(
    "pod",
    [
        {"metadata": {"name": "pod"}, "spec": HARMLESS},
        worker(kind="ReplicaSet", group="apps/v1"),
        worker(kind="TrainingJob", group="example.org/v1"),
        worker(controller=False),
    ],
    ids=["no owner", "owned by a ReplicaSet", "owned by a namesake", "not owned by its controller"],
)
def test_the_operators_account_makes_nothing_but_workers(guarded: Plane, pod: Json) -> None:
    assert "of TrainingJobs" in refused_pod(guarded, pod)
    assert not refused_pod(guarded, worker())


def test_operator_account_deletes_only_workers(guarded: Plane) -> None:
    pods = f"/api/v1/namespaces/{GUARDED}/pods"
    place = f"{JOBS}/namespaces/{GUARDED}/trainingjobs"
    # Pods of a job that is no more would be taken away.
    made = guarded.call("POST", place, job(), user=AUTHOR)
    for name, pod, user in (
        ("ours", worker(uid=made["metadata"]["uid"]), OPERATOR),
        ("theirs", {"metadata": {}, "spec": HARMLESS}, TENANT),
    ):
        guarded.call("POST", pods, {**pod, "metadata": {**pod["metadata"], "name": name}}, user=user)
    with pytest.raises(RefusedError, match="of TrainingJobs"):
        guarded.call("DELETE", f"{pods}/theirs?gracePeriodSeconds=0", user=OPERATOR)
    guarded.call("DELETE", f"{pods}/ours?gracePeriodSeconds=0", user=OPERATOR)
    guarded.call("DELETE", f"{pods}/theirs?gracePeriodSeconds=0")
    guarded.forget(f"{place}/job")


MIGHTY = [{**HARMLESS["containers"][0], "securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}}}]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"hostPID": True}, "hostPID"),
        ({"hostNetwork": True}, "hostNetwork"),
        ({"containers": MIGHTY}, "capabilities.add has one"),
        ({"volumes": [{"name": "root", "hostPath": {"path": "/"}}]}, "hostPath is refused"),
        ({"securityContext": {}}, "runAsNonRoot must be true"),
    ],
    ids=["processes", "network", "capability", "root", "perhaps root"],
)
def test_stolen_token_creates_no_privileged_worker(guarded: Plane, spec: Json, message: str) -> None:
    assert message in refused_pod(guarded, worker(spec=spec))
    assert refused_pod(guarded, worker(spec=spec), namespace="default"), "by a policy, or for lack of a role"


def test_administrator_exempts_a_namespace_by_label(guarded: Plane) -> None:
    assert not refused_pod(guarded, worker(spec={"hostNetwork": True}), namespace=EXEMPT)


@pytest.mark.parametrize("namespace", ["kube-system", HOME])
def test_stolen_token_creates_nothing_in_system_namespaces(guarded: Plane, namespace: str) -> None:
    assert f"may not create workers in {namespace}" in refused_pod(guarded, worker(), namespace=namespace)


def test_helm_test_reads_no_secret_of_the_release(guarded: Plane) -> None:
    own = worker(name="helm-test-0a1b2c", spec={"volumes": [{"name": "scratch", "emptyDir": {}}]})
    assert not refused_pod(guarded, own, namespace=HOME)
    secret = {"name": "secret", "secret": {"secretName": "trainyard-coordinator-cert"}}
    projected = {"name": "secret", "projected": {"sources": [{"secret": {"name": "trainyard-coordinator-cert"}}]}}
    key = {"secretKeyRef": {"name": "trainyard-coordinator-cert", "key": "tls.key"}}
    main = HARMLESS["containers"][0]
    for spec in (
        {"volumes": [secret]},
        {"volumes": [projected]},
        {"serviceAccountName": "trainyard"},
        {"containers": [{**main, "env": [{"name": "KEY", "valueFrom": key}]}]},
        {"containers": [{**main, "envFrom": [{"secretRef": {"name": "trainyard-coordinator-cert"}}]}]},
    ):
        forged = worker(name="helm-test-0a1b2c", spec={"volumes": [], **spec})
        refusal = refused_pod(guarded, forged, namespace=HOME)
        assert "may not create workers in" in refusal, spec


OWNED = {"name": "job", "ownerReferences": worker()["metadata"]["ownerReferences"]}


@pytest.mark.parametrize(
    ("metadata", "spec", "message"),
    [
        (OWNED, {"clusterIP": "None"}, ""),
        ({"name": "job"}, {"clusterIP": "None"}, "of TrainingJobs"),
        (OWNED, {"ports": [{"port": 80}]}, "only headless Services"),
        (OWNED, {"clusterIP": "None", "externalIPs": ["192.0.2.1"]}, "only headless Services"),
    ],
    ids=["the job's own", "nobody's", "with an address", "with the address of another"],
)
def test_stolen_token_creates_only_services_of_jobs(guarded: Plane, metadata: Json, spec: Json, message: str) -> None:
    refusal = refused_object(guarded, {"metadata": metadata, "spec": spec}, kind="services")
    assert message in refusal
    assert bool(refusal) == bool(message)


@pytest.mark.parametrize(
    ("metadata", "selector", "message"),
    [
        (OWNED, {"matchLabels": {"trainyard.dev/job-uid": "1"}}, ""),
        ({"name": "job"}, {"matchLabels": {"trainyard.dev/job-uid": "1"}}, "of TrainingJobs"),
        (OWNED, {}, "for the workers of their owner"),
        (OWNED, {"matchLabels": {"app": "database"}}, "for the workers of their owner"),
        (OWNED, {"matchLabels": {"trainyard.dev/job-uid": "2"}}, "for the workers of their owner"),
    ],
    ids=["the job's own", "nobody's", "for all pods", "for another application", "for another job"],
)
def test_stolen_token_opens_no_other_pods(guarded: Plane, metadata: Json, selector: Json, message: str) -> None:
    policy = {"metadata": metadata, "spec": {"podSelector": selector, "ingress": [{}]}}
    refusal = refused_object(guarded, policy, "/apis/networking.k8s.io/v1", "networkpolicies")
    assert message in refusal
    assert bool(refusal) == bool(message)


def test_tenant_forges_no_worker(guarded: Plane) -> None:
    forged = worker(labels=LABELS)
    assert "only the operator sets labels of trainyard.dev" in refused_pod(guarded, forged, user=TENANT)
    assert "pods that a TrainingJob controls" in refused_pod(guarded, worker(), user=TENANT)
    labelled = {"metadata": {"name": "pod", "labels": {"trainyard.dev/job-name": "job"}}, "spec": HARMLESS}
    assert "only the operator sets labels" in refused_pod(guarded, labelled, user=TENANT)
    # A pod that only goes with the job, such as a dashboard, is no worker.
    assert not refused_pod(guarded, worker(controller=False), user=TENANT)
    assert not refused_pod(guarded, forged)


def test_tenant_turns_no_pod_into_a_worker(guarded: Plane) -> None:
    guarded.call("POST", PODS, {"metadata": {"name": "plain", "labels": {"a": "b"}}, "spec": HARMLESS})
    one = f"{PODS}/plain"
    try:
        for metadata in ({"labels": LABELS}, {"ownerReferences": worker()["metadata"]["ownerReferences"]}):
            with pytest.raises(RefusedError, match="only the operator"):
                guarded.call("PATCH", one, {"metadata": metadata}, MERGE)
        guarded.call("PATCH", one, {"metadata": {"labels": {"a": "c"}}}, MERGE)
    finally:
        guarded.forget(f"{one}?gracePeriodSeconds=0")


def test_kubernetes_still_changes_real_workers(guarded: Plane) -> None:
    """What kubelet, scheduler, garbage collector and users do to a worker that the operator has created."""
    place = f"{JOBS}/namespaces/{GUARDED}/trainingjobs"
    made = guarded.call("POST", place, job("real"), user=AUTHOR)
    uid = made["metadata"]["uid"]
    pod = worker(uid=uid, name="real", labels={**LABELS, "trainyard.dev/job-uid": uid})
    guarded.call("POST", PODS, pod, user=OPERATOR)
    one = f"{PODS}/pod"
    debugger = {"name": "debugger", "image": "example.com/tool:1", "targetContainerName": "main"}

    def change(what: Json, place: str = one) -> Any:
        return guarded.call("PATCH", place, what, "application/strategic-merge-patch+json")

    try:
        # The kubelet, and the controllers that report a disruption.
        change({"status": {"phase": "Pending", "message": "pulling"}}, f"{one}/status")
        change({"spec": {"ephemeralContainers": [debugger]}}, f"{one}/ephemeralcontainers")
        change({"metadata": {"annotations": {"note": "kept"}, "finalizers": ["example.com/held"]}})
        change({"metadata": {"$deleteFromPrimitiveList/finalizers": ["example.com/held"]}})
        binding = {"metadata": {"name": "pod"}, "target": {"kind": "Node", "name": "anywhere"}}
        guarded.call("POST", f"{one}/binding", binding)
        for label, value in (("trainyard.dev/index", "1"), ("trainyard.dev/role", "worker")):
            with pytest.raises(RefusedError, match="only the operator sets labels"):
                change({"metadata": {"labels": {label: value}}})
        other = [{**pod["metadata"]["ownerReferences"][0], "uid": "2"}]
        with pytest.raises(RefusedError, match=r"pods that a TrainingJob controls|Only one reference"):
            guarded.call("PATCH", one, {"metadata": {"ownerReferences": other}}, MERGE)
        # The garbage collector, for `kubectl delete --cascade=orphan`.
        guarded.call("PATCH", one, {"metadata": {"ownerReferences": None}}, MERGE)
    finally:
        guarded.call("DELETE", f"{one}?gracePeriodSeconds=0")
        guarded.forget(f"{place}/real")
