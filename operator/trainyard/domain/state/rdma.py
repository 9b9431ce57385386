"""The devices for RDMA that a container requests. Pure."""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

RDMA_RESOURCES = ("rdma/*", "*/*rdma*", "*/hca*", "*/*roce*", "*/*infiniband*", "*/mlnx*", "*/mlx*")
"""Names of extended resources: of the shared device plugin and of SR-IOV plugins. Administrators choose most of them."""
EFA = "*/efa"
"""The resource of AWS, which libfabric uses and not verbs."""


def requested_of(container: Mapping[str, Any], patterns: Sequence[str]) -> list[str]:
    """Return the extended resources that a container requests and that match a pattern."""
    resources: Mapping[str, Any] = container.get("resources") or {}
    names = {*(resources.get("limits") or {}), *(resources.get("requests") or {})}
    return sorted(name for name in names if any(fnmatchcase(name.lower(), each.lower()) for each in patterns))
