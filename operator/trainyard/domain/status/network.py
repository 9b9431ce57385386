"""Warn of workers that request devices for RDMA while NCCL communicates by TCP: a library, a device or locked memory is missing. Pure."""

from fnmatch import fnmatchcase

from trainyard.api.reasons import Reason
from trainyard.api.status import ConditionType as C
from trainyard.domain.decisions import Clear, ConditionUpdate, SetTrue
from trainyard.domain.state.snapshot import JobView, Snapshot

RDMA_RESOURCES = ("rdma/*", "*/*rdma*", "*/efa", "*/hca*", "*/*roce*", "*/*infiniband*", "*/mlnx*", "*/mlx*")
"""Names of extended resources: of the shared device plugin, of SR-IOV plugins and of clouds. Administrators choose most of them."""


def rdma_unused(snapshot: Snapshot) -> ConditionUpdate | None:
    """Return whether requested devices for RDMA are unused; None where the network is not known or none are requested."""
    requested = rdma_resources(snapshot.job)
    network = next((each.network for each in snapshot.attempt_reports if each.network), None)
    if network is None or not requested:
        return None
    if not network.uses_sockets:
        return Clear(C.RDMA_UNUSED, Reason.RDMA_IN_USE, f"NCCL uses the network {network.name}")
    message = (
        f"the workers request {', '.join(requested)}, but NCCL uses TCP (network {network.name});"
        " the image may lack libibverbs or the plugin of the cloud, or the container the capability IPC_LOCK"
    )
    return SetTrue(C.RDMA_UNUSED, Reason.TCP_IN_USE, message)


def rdma_resources(job: JobView) -> list[str]:
    """Return the names of the resources for RDMA that the main container requests."""
    main = job.spec.template["spec"]["containers"][0]
    limits = (main.get("resources") or {}).get("limits") or {}
    return sorted(name for name in limits if any(fnmatchcase(name.lower(), each) for each in RDMA_RESOURCES))
