"""The permissions that the chart must grant to the operator, and those that a role grants."""

from collections import defaultdict
from collections.abc import Mapping

from tests.unit.helm.chart import Manifest

Grants = Mapping[tuple[str, str], set[str]]
"""Verbs by group and resource."""

OPERATOR: Grants = {
    ("trainyard.dev", "trainingjobs"): {"get", "list", "watch", "delete"},
    ("trainyard.dev", "trainingjobs/status"): {"update"},
    ("trainyard.dev", "trainingjobs/finalizers"): {"update"},
    ("", "pods"): {"get", "list", "watch", "create", "patch", "delete"},
    ("", "services"): {"get", "list", "watch", "create"},
    ("events.k8s.io", "events"): {"get", "list", "create", "patch"},
}
KUEUE: Grants = {
    ("kueue.x-k8s.io", "workloads"): {"get", "list", "watch", "create", "patch", "delete"},
    ("kueue.x-k8s.io", "workloads/status"): {"patch"},
}
KUEUE_CLASSES: Grants = {
    ("kueue.x-k8s.io", "resourceflavors"): {"get"},
    ("kueue.x-k8s.io", "workloadpriorityclasses"): {"get"},
    ("scheduling.k8s.io", "priorityclasses"): {"get"},
}
ELECTION: Grants = {
    ("coordination.k8s.io", "leases/trainyard"): {"get", "update"},
    ("coordination.k8s.io", "leases"): {"create"},
}
CERTIFICATE: Grants = {("", "secrets/trainyard-coordinator-cert"): {"get", "update"}}
ROLES = (
    ("ClusterRole", "trainyard"),
    ("Role", "trainyard-leader-election"),
    ("Role", "trainyard-coordinator-cert"),
)
"""The roles of a release called trainyard that its operator is bound to."""


def without_name(resource: str) -> str:
    """Return the resource of a permission that may be restricted to one object of it."""
    return resource.removesuffix("/trainyard").removesuffix("/trainyard-coordinator-cert")


def grants(role: Manifest) -> Grants:
    """Return the verbs that a role grants on each resource. Rules of other shapes raise KeyError or AssertionError."""
    found: dict[tuple[str, str], set[str]] = defaultdict(set)
    for rule in role["rules"]:
        assert set(rule) - {"resourceNames"} == {"apiGroups", "resources", "verbs"}
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                for name in rule.get("resourceNames", [""]):
                    found[group, f"{resource}/{name}" if name else resource] |= set(rule["verbs"])
    return found
