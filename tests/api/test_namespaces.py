"""An operator of two namespaces, with Roles there and no right in the whole cluster, kopf included."""

import time
from collections.abc import Iterator

import pytest

from tests.api.nodes import Namespace
from tests.api.plane import HOME, RBAC, Plane
from tests.api.process import Operator
from tests.support.polling import until
from tests.unit.helm.chart import Chart, Release

NAMESPACES = ("lab", "annex")


@pytest.fixture
def release(plane: Plane, chart: Chart) -> Iterator[Release]:
    """The Roles of the chart, where their namespace is there, and nothing of what another test has granted in the whole cluster."""
    made = chart.render({"watchNamespaces": [*NAMESPACES]})
    plane.forget(f"{RBAC}/clusterrolebindings/trainyard")
    grant(plane, made, "lab")
    grant(plane, made, HOME)
    yield made
    for place in ("lab", "annex"):
        plane.forget(f"{RBAC}/namespaces/{place}/rolebindings/trainyard")


def grant(plane: Plane, release: Release, namespace: str) -> None:
    for kind in ("Role", "RoleBinding"):
        for manifest in release.all(kind):
            if manifest["metadata"]["namespace"] == namespace:
                plane.grant(manifest)


def remove(plane: Plane, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}"
    plane.call("DELETE", path)
    until(lambda: not plane.find(path), 60, f"{namespace} to go")


def test_a_namespace_comes_goes_and_comes_again(plane: Plane, lab: Namespace, release: Release) -> None:
    began = time.time()
    op = Operator(plane, "of-two", namespaces=",".join(NAMESPACES), relist_seconds="5")
    try:
        lab.submit("first")
        lab.until_phase("Running", "first", within=40)
        _, answer = op.get("readyz")
        assert "the operator may not list pods in the namespace annex" in answer
        assert "namespace lab" not in answer
        for round_ in ("one", "two"):
            plane.namespace("annex")
            grant(plane, release, "annex")
            with Namespace(plane, "annex") as annex:
                annex.submit(round_)
                annex.until_phase("Running", round_, within=60)
                until(lambda: op.get("readyz")[0] == 200, 60, "readiness")
                remove(plane, "annex")
        lab.ends("first-worker-1-1", 3)
        until(lambda: lab.status("first")["attempt"] == 2, 20, "the other namespace to be served")
        assert op.process.poll() is None
        assert not op.bugs()
        complaints = [message for message in op.messages() if "may not list pods in the namespace annex" in message]
        assert 1 <= len(complaints) <= 3, "once for each time that it was away"
        outside = [request for request in plane.requests(began) if request.namespace not in {*NAMESPACES, HOME}]
        assert outside == [], "it has not even asked"
    finally:
        op.end()
        lab.remove("first")
