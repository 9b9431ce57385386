"""Users of a namespace that the chart's admission policies guard, what they ask for, and why the API server refuses it."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.api.plane import HOME, JOBS, Plane
from tests.support.control_plane import RefusedError
from tests.support.polling import until
from tests.unit.helm.chart import Chart

GUARDED, EXEMPT = "guarded", "exempt"
"""In the second one an administrator wants no pod security."""
POLICIES = "/apis/admissionregistration.k8s.io/v1"
AUTHOR, STUDENT, TENANT = "author", "student", ""
"""The first two may write TrainingJobs, and the author pods too. The third may do everything, and has the API server's own user."""
OPERATOR = f"system:serviceaccount:{HOME}:trainyard"
RBAC = {"apiVersion": "rbac.authorization.k8s.io/v1"}
MERGE = "application/merge-patch+json"
Json = dict[str, Any]

HARMLESS: Json = {
    "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
    "volumes": [{"name": "scratch", "emptyDir": {}}, {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
    "containers": [
        {
            "name": "main",
            "image": "example.com/trainer:1",
            "command": ["python", "train.py"],
            "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        }
    ],
}


def role(
    name: str, users: list[str], group: str, resources: list[str], verbs: list[str], namespace: str = GUARDED
) -> Iterator[Json]:
    metadata = {"name": name, "namespace": namespace}
    rules = [{"apiGroups": [group], "resources": resources, "verbs": verbs}]
    subjects = [{"kind": "User", "name": user, "apiGroup": "rbac.authorization.k8s.io"} for user in users]
    reference = {"kind": "Role", "name": name, "apiGroup": "rbac.authorization.k8s.io"}
    yield {**RBAC, "kind": "Role", "metadata": metadata, "rules": rules}
    yield {**RBAC, "kind": "RoleBinding", "metadata": metadata, "subjects": subjects, "roleRef": reference}


@contextmanager
def guard(plane: Plane, chart: Chart) -> Iterator[Plane]:
    """All that the chart has to guard namespaces, and the accounts of the tests."""
    for name in (GUARDED, EXEMPT):
        if not plane.find(f"/api/v1/namespaces/{name}"):
            plane.namespace(name)
    label = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "privileged"}}}
    plane.call("PATCH", f"/api/v1/namespaces/{EXEMPT}", label, MERGE)
    for manifest in (
        *role("writes", [AUTHOR, STUDENT], "trainyard.dev", ["trainingjobs"], ["create", "update", "patch", "delete"]),
        *role("runs", [AUTHOR], "", ["pods"], ["create"]),
        *role("operates", [OPERATOR], "", ["pods", "services"], ["create", "delete"]),
        *role("operates", [OPERATOR], "", ["pods"], ["create"], HOME),
        *role("operates", [OPERATOR], "", ["pods"], ["create"], "kube-system"),
        *role("operates", [OPERATOR], "", ["pods"], ["create"], EXEMPT),
        *role("isolates", [OPERATOR], "networking.k8s.io", ["networkpolicies"], ["create"]),
    ):
        plane.grant(manifest)
    admission = {"enabled": True, "podSecurity": "restricted", "guardServiceAccounts": True}
    release = chart.render({"admission": admission})
    kinds = {"validatingadmissionpolicies": "ValidatingAdmissionPolicy"}
    kinds |= {"validatingadmissionpolicybindings": "ValidatingAdmissionPolicyBinding"}
    made = [(plural, policy) for plural, kind in kinds.items() for policy in release.all(kind)]
    assert len(made) == 10
    for plural, policy in made:
        plane.call("POST", f"{POLICIES}/{plural}", dict(policy))
    # They are in force a moment later, each by itself, and so is their end.
    guards: dict[str, Callable[[], str]] = {
        "authors": lambda: refused(plane, STUDENT),
        "templates": lambda: refused(plane, AUTHOR, hostNetwork=True),
        "the operator": lambda: refused_pod(plane),
        "the operator's pods": lambda: refused_pod(plane, worker(spec={"hostNetwork": True})),
        "forged workers": lambda: refused_pod(plane, worker(), user=TENANT),
    }
    for name, reason in guards.items():
        until(reason, 30, f"{name} to be looked at")
    yield plane
    for plural, policy in made:
        plane.forget(f"{POLICIES}/{plural}/{policy['metadata']['name']}")
    until(lambda: not any(reason() for reason in guards.values()), 30, "the guard to be gone")


def job(name: str = "job", **pod: Any) -> Json:
    spec = {"framework": "none", "template": {"spec": {**copy.deepcopy(HARMLESS), **pod}}}
    return {"apiVersion": "trainyard.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": name}, "spec": spec}


def submit(plane: Plane, user: str, manifest: Json) -> None:
    """Have the API server judge it, and keep nothing."""
    plane.call("POST", f"{JOBS}/namespaces/{GUARDED}/trainingjobs?dryRun=All", manifest, user=user)


def refused(plane: Plane, user: str, **pod: Any) -> str:
    try:
        submit(plane, user, job(**pod))
    except RefusedError as error:
        return str(error)
    return ""


def worker(
    kind: str = "TrainingJob",
    group: str = "trainyard.dev/v1alpha1",
    *,
    uid: str = "1",
    controller: bool = True,
    labels: Json | None = None,
    spec: Json | None = None,
    name: str = "job",
) -> Json:
    """A pod of job `name`, as the operator creates it but for these differences."""
    owner = {"apiVersion": group, "kind": kind, "name": name, "uid": uid, "controller": controller}
    metadata: Json = {"name": "pod", "ownerReferences": [owner], "labels": labels or {}}
    return {"metadata": metadata, "spec": {**HARMLESS, **(spec or {})}}


def refused_pod(plane: Plane, pod: Json | None = None, *, user: str = OPERATOR, namespace: str = GUARDED) -> str:
    return refused_object(plane, pod or {"metadata": {"name": "pod"}, "spec": HARMLESS}, user=user, namespace=namespace)


def refused_object(
    plane: Plane,
    made: Json,
    place: str = "/api/v1",
    kind: str = "pods",
    *,
    user: str = OPERATOR,
    namespace: str = GUARDED,
) -> str:
    """Return why it may not be created; empty where it may."""
    try:
        plane.call("POST", f"{place}/namespaces/{namespace}/{kind}?dryRun=All", made, user=user)
    except RefusedError as error:
        return str(error)
    return ""
