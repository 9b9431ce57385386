"""Claims of devices pass through, and workers of a job with a ComputeDomain get a channel of it."""

from typing import Any

import pytest

from tests.support.jobs import job
from tests.support.worker_pods import Json, container, worker
from trainyard.domain.state.job_template import template_hash
from trainyard.frameworks.agent_wrapper import AgentImage
from trainyard.frameworks.manifests import compute_domain, worker_pod

TRAIN = container(command=["python", "train.py"])
GPUS: Json = {"name": "gpus", "resourceClaimTemplateName": "eight-gpus"}
CHANNEL: Json = {"name": "compute-domain", "resourceClaimTemplateName": "train-compute-domain"}
DOMAIN: Json = {"scheduling": {"computeDomain": {}}}


def spec(*containers: Json, pod: Json | None = None, **fields: Any) -> Json:
    found: Json = worker_pod(worker(*containers, pod=pod, **fields), AgentImage("operator:1"))["spec"]
    return found


def test_claims_of_the_template_pass_through() -> None:
    claimed = {**TRAIN, "resources": {"claims": [{"name": "gpus"}], "limits": {"cpu": "4"}}}
    made = spec(claimed, pod={"resourceClaims": [GPUS]})
    assert made["resourceClaims"] == [GPUS]
    assert made["containers"][0]["resources"] == claimed["resources"]
    assert "claims" not in made["initContainers"][0]["resources"], "the agent needs no device"


def test_worker_gets_a_channel_of_its_domain() -> None:
    claimed = {**TRAIN, "resources": {"claims": [{"name": "gpus"}]}}
    made = spec(claimed, container("sidecar"), pod={"resourceClaims": [GPUS]}, **DOMAIN)
    assert made["resourceClaims"] == [GPUS, CHANNEL]
    main, sidecar = made["containers"]
    assert main["resources"]["claims"] == [{"name": "gpus"}, {"name": "compute-domain"}]
    assert "resources" not in sidecar


def test_pod_has_no_claims_by_default() -> None:
    made = spec(TRAIN)
    assert "resourceClaims" not in made
    assert "claims" not in (made["containers"][0].get("resources") or {})


def test_claim_of_the_user_wins() -> None:
    own = {**CHANNEL, "resourceClaimTemplateName": "another"}
    made = spec(TRAIN, pod={"resourceClaims": [own]}, **DOMAIN)
    assert made["resourceClaims"] == [own]
    assert "resources" not in made["containers"][0]


@pytest.mark.parametrize(
    ("wanted", "channel"), [({}, {}), ({"allocationMode": "All"}, {"allocationMode": "All"})], ids=["default", "all"]
)
def test_domain_has_any_number_of_nodes(wanted: Json, channel: Json) -> None:
    made = compute_domain(job(4, scheduling={"computeDomain": wanted}).job)
    assert (made["apiVersion"], made["kind"], made["metadata"]["name"]) == (
        "resource.nvidia.com/v1beta1",
        "ComputeDomain",
        "train",
    )
    assert made["metadata"]["ownerReferences"][0]["uid"] == "job-uid"
    template = {"resourceClaimTemplate": {"name": "train-compute-domain"}}
    assert made["spec"] == {"numNodes": 0, "channel": {**template, **channel}}


def test_domain_belongs_to_the_template() -> None:
    """Pods of one group have all a channel, or none."""
    plain, wanted = job(4).spec, job(4, **DOMAIN).spec
    assert template_hash(plain) != template_hash(wanted)
    assert template_hash(plain) == template_hash(job(4, scheduling={"rankOrder": "index"}).spec)
