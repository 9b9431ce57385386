"""Devices by claims on a real API server: claims pass through, and a ComputeDomain exists before the pods that get channels of it."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.api.nodes import Namespace
from tests.api.plane import Plane
from tests.api.process import operator
from tests.support.control_plane import RefusedError
from tests.support.polling import until
from tests.unit.helm.chart import Chart

Json = dict[str, Any]
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
DOMAINS = "/apis/resource.nvidia.com/v1beta1/namespaces/lab/computedomains"
NAME: Json = {"type": "object", "required": ["name"], "properties": {"name": {"type": "string", "minLength": 1}}}
CHANNEL: Json = {
    "type": "object",
    "required": ["resourceClaimTemplate"],
    "properties": {"resourceClaimTemplate": NAME, "allocationMode": {"type": "string", "enum": ["All", "Single"]}},
}
SPEC: Json = {
    "type": "object",
    "required": ["numNodes", "channel"],
    "properties": {"numNodes": {"type": "integer"}, "channel": CHANNEL},
    "x-kubernetes-validations": [{"rule": "self == oldSelf", "message": "A computeDomain.spec is immutable"}],
}
VERSION: Json = {
    "name": "v1beta1",
    "served": True,
    "storage": True,
    "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": SPEC}}},
}
DEFINITION: Json = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "computedomains.resource.nvidia.com"},
    "spec": {
        "group": "resource.nvidia.com",
        "scope": "Namespaced",
        "names": {"plural": "computedomains", "singular": "computedomain", "kind": "ComputeDomain"},
        "versions": [VERSION],
    },
}
"""What of the driver's definition (k8s-dra-driver-gpu, v1beta1) is about the fields of a job's domain."""
CLAIMED: Json = {
    "name": "main",
    "image": "trainer:1",
    "resources": {"claims": [{"name": "gpus"}], "limits": {"cpu": "1"}},
}
TEMPLATE: Json = {
    "spec": {
        "containers": [CLAIMED],
        "resourceClaims": [{"name": "gpus", "resourceClaimTemplateName": "eight-gpus"}],
    }
}


@pytest.fixture
def driver(plane: Plane) -> Iterator[None]:
    """The kind of NVIDIA's driver."""

    def is_served() -> bool:
        try:
            return bool(plane.find(DOMAINS))
        except RefusedError:
            # 429 for a moment.
            return False

    plane.call("POST", CRDS, DEFINITION)
    try:
        until(is_served, 30, "the kind to be served")
        yield
    finally:
        plane.forget(f"{CRDS}/computedomains.resource.nvidia.com")


def test_claims_of_the_template_reach_the_pods(plane: Plane, chart: Chart, lab: Namespace) -> None:
    plane.grant_chart(chart)
    with operator(plane, "claims"):
        lab.submit("claimed", replicas=2, template=TEMPLATE)
        lab.until_phase("Running", "claimed")
        for pod in lab.pods("claimed").values():
            assert pod["spec"]["resourceClaims"] == TEMPLATE["spec"]["resourceClaims"]
            assert pod["spec"]["containers"][0]["resources"]["claims"] == [{"name": "gpus"}]
        lab.remove("claimed")


@pytest.mark.usefixtures("driver")
def test_workers_get_channels_of_their_domain(plane: Plane, chart: Chart, lab: Namespace) -> None:
    plane.grant_chart(chart, {"computeDomains": {"enabled": True}})
    with operator(plane, "domains"):
        lab.submit("linked", replicas=2, scheduling={"computeDomain": {"allocationMode": "All"}})
        lab.until_phase("Running", "linked")
        channel = plane.find(f"{DOMAINS}/linked")["spec"]["channel"]
        assert channel == {"resourceClaimTemplate": {"name": "linked-compute-domain"}, "allocationMode": "All"}
        claim = {"name": "compute-domain", "resourceClaimTemplateName": "linked-compute-domain"}
        assert [pod["spec"]["resourceClaims"] for pod in lab.pods("linked").values()] == [[claim], [claim]]
        with pytest.raises(RefusedError, match="computeDomain can be changed only while the job is suspended"):
            lab.change("linked", scheduling={"computeDomain": None})
        lab.remove("linked")
        until(lambda: not plane.find(f"{DOMAINS}/linked"), 30, "the domain to go")


def test_missing_driver_is_named(plane: Plane, chart: Chart, lab: Namespace) -> None:
    until(lambda: not plane.find(DOMAINS), 30, "the kind of other tests to go")
    plane.grant_chart(chart, {"computeDomains": {"enabled": True}})
    with operator(plane, "missing"):
        lab.submit("alone", replicas=1, scheduling={"computeDomain": {}})
        until(lambda: lab.condition("Running", "alone").get("reason") == "ComputeDomainRejected", 30, "the reason")
        assert lab.pods("alone") == {}
        lab.remove("alone")
