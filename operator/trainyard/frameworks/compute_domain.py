"""The ComputeDomain of a job, and the claim by which each worker gets a channel of it. Pure.

NVIDIA's DRA driver makes the ResourceClaimTemplate that the ComputeDomain names. A pod with a claim from it waits on its node until the
daemon of the domain runs there. A domain without a fixed number of nodes is the same for all attempts and sizes of a job.
"""

from typing import Final

from trainyard.api.roles import is_worker
from trainyard.domain.state.snapshot import JobView
from trainyard.frameworks.worker_spec import Json, Worker

CLAIM: Final = "compute-domain"
"""The name of the claim in a pod."""
API_VERSION: Final = "resource.nvidia.com/v1beta1"


def compute_domain(job: JobView, metadata: Json) -> Json:
    """Return the ComputeDomain of a job that wants one. `metadata`: that of an object of the job."""
    wanted = job.spec.scheduling.compute_domain
    channel: Json = {"resourceClaimTemplate": {"name": claim_template(job)}}
    if wanted is not None and wanted.allocation_mode is not None:
        channel["allocationMode"] = wanted.allocation_mode.value
    return {
        "apiVersion": API_VERSION,
        "kind": "ComputeDomain",
        "metadata": metadata,
        "spec": {"numNodes": 0, "channel": channel},
    }


def claim_template(job: JobView) -> str:
    """Return the name of the ResourceClaimTemplate that the driver makes."""
    return f"{job.name}-compute-domain"


def with_channel(worker: Worker, spec: Json) -> Json:
    """Return the pod spec in which the main container of a worker has a channel, where the job wants that. A claim of that name stays."""
    own: list[Json] = spec.get("resourceClaims") or []
    wanted = worker.spec.scheduling.compute_domain is not None and is_worker(worker.index)
    if not wanted or any(claim["name"] == CLAIM for claim in own):
        return spec
    main: Json = spec["containers"][0]
    resources: Json = main.get("resources") or {}
    claims = [*(resources.get("claims") or []), {"name": CLAIM}]
    claimed = {**main, "resources": {**resources, "claims": claims}}
    pod_claim = {"name": CLAIM, "resourceClaimTemplateName": claim_template(worker.job)}
    return {**spec, "containers": [claimed, *spec["containers"][1:]], "resourceClaims": [*own, pod_claim]}
