"""The role for editors of TrainingJobs suffices alone, on a real API server."""

from typing import Any

import pytest

from tests.api.plane import JOBS, Plane
from tests.support.control_plane import RefusedError
from tests.unit.helm.chart import Chart

EDITOR = "editor"
JOB = f"{JOBS}/namespaces/edited/trainingjobs"
MERGE = "application/merge-patch+json"


def test_edit_role_alone_applies_jobs(plane: Plane, chart: Chart) -> None:
    plane.namespace("edited")
    role = "trainyard-edit"
    plane.grant(chart.render().one("ClusterRole", role))
    user = {"kind": "User", "name": EDITOR, "apiGroup": "rbac.authorization.k8s.io"}
    binding: dict[str, Any] = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": role, "namespace": "edited"},
        "subjects": [user],
        "roleRef": {"kind": "ClusterRole", "name": role, "apiGroup": "rbac.authorization.k8s.io"},
    }
    plane.grant(binding)
    template = {"spec": {"containers": [{"name": "main", "image": "trainer:1"}]}}
    kind = {"apiVersion": "trainyard.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": "job"}}
    # What `kubectl apply`, `kubectl get`, `kubectl scale` and `kubectl delete` ask for.
    with pytest.raises(RefusedError, match="not found"):
        plane.call("GET", f"{JOB}/job", user=EDITOR)
    plane.call("POST", JOB, {**kind, "spec": {"template": template}}, user=EDITOR)
    assert plane.call("GET", JOB, user=EDITOR)["items"]
    plane.call("PATCH", f"{JOB}/job", {"spec": {"replicas": 2}}, content=MERGE, user=EDITOR)
    assert plane.call("GET", f"{JOB}/job/scale", user=EDITOR)["spec"] == {"replicas": 2}
    plane.call("PATCH", f"{JOB}/job/scale", {"spec": {"replicas": 3}}, content=MERGE, user=EDITOR)
    with pytest.raises(RefusedError, match="forbidden"):
        plane.call("PATCH", f"{JOB}/job/status", {"status": {"phase": "Complete"}}, content=MERGE, user=EDITOR)
    plane.call("DELETE", f"{JOB}/job", user=EDITOR)
