"""What a tenant writes into its own namespace, on a real API server: another tenant's job goes on as before."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.api.nodes import MERGE, Namespace
from tests.api.plane import JOBS, Plane
from tests.api.process import operator
from tests.support.control_plane import RefusedError
from tests.support.polling import until

pytestmark = pytest.mark.usefixtures("granted")
Json = dict[str, Any]
NAMES = ["Job", "JOB", "jöb", "job\u200b", "j" * 254, "-job", "job/..", ""]


@pytest.fixture
def office(plane: Plane) -> Iterator[Namespace]:
    with Namespace(plane, "office") as namespace:
        yield namespace


def manifest(name: str, **metadata: Any) -> Json:
    spec = {"framework": "none", "template": {"spec": {"containers": [{"name": "main", "image": "example.com/x:1"}]}}}
    meta = {"name": name, **metadata}
    return {"apiVersion": "trainyard.dev/v1alpha1", "kind": "TrainingJob", "metadata": meta, "spec": spec}


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_strange_names_are_refused(plane: Plane, name: str) -> None:
    """Names in another case or script cannot look like another job's."""
    with pytest.raises(RefusedError):
        plane.call("POST", f"{JOBS}/namespaces/lab/trainingjobs", manifest(name))


def test_objects_of_a_tenant_disturb_no_other(plane: Plane, lab: Namespace, office: Namespace) -> None:
    with operator(plane, "one"):
        office.submit("victim")
        office.until_phase("Running", "victim")
        victim = office.job("victim")
        pods = {name: pod["metadata"]["uid"] for name, pod in office.pods("victim").items()}
        owner = {"apiVersion": "trainyard.dev/v1alpha1", "kind": "TrainingJob", "name": "victim", "controller": True}
        labels = {"trainyard.dev/job-name": "victim", "trainyard.dev/job-uid": victim["metadata"]["uid"]}
        forged: Json = {
            "metadata": {
                "name": "victim-worker-0-9",
                "labels": labels,
                "ownerReferences": [{**owner, "uid": victim["metadata"]["uid"]}],
            },
            "spec": {"containers": [{"name": "main", "image": "example.com/x:1"}]},
        }
        # A worker of the victim, a job that belongs to it, and one of the same name whose status says all.
        plane.call("POST", "/api/v1/namespaces/lab/pods", forged)
        plane.call(
            "POST",
            f"{JOBS}/namespaces/lab/trainingjobs",
            manifest("victim", ownerReferences=[], finalizers=["example.com/never"], labels=labels),
        )
        lab.until_phase("Running", "victim")
        plane.call(
            "PATCH",
            f"{JOBS}/namespaces/lab/trainingjobs/victim/status",
            {"status": {"attempt": 10**9, "rendezvous": {"address": "192.0.2.1"}, "size": 100_000}},
            MERGE,
        )
        try:
            # A deletion that never ends.
            plane.call("DELETE", f"{JOBS}/namespaces/lab/trainingjobs/victim")
            office.ends("victim-worker-1-1", 3)
            until(lambda: office.status("victim")["attempt"] == 2, 20, "the victim to recover")
            office.until_phase("Running", "victim")
            assert office.job("victim")["metadata"]["uid"] == victim["metadata"]["uid"]
            assert not pods.keys() & {name for name in office.pods("victim") if name.endswith("-1")}
            assert office.status("victim")["attempt"] == 2
        finally:
            plane.call("PATCH", f"{JOBS}/namespaces/lab/trainingjobs/victim", {"metadata": {"finalizers": None}}, MERGE)
            plane.forget("/api/v1/namespaces/lab/pods/victim-worker-0-9?gracePeriodSeconds=0")
            office.remove("victim")
