"""What the operator may do, written out: a rule that is added must be added here too, and read by a reviewer."""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import pytest

from tests.unit.helm.chart import Chart, Manifest, Release

Grants = Mapping[tuple[str, str], set[str]]

OPERATOR: Grants = {
    ("trainyard.dev", "trainingjobs"): {"get", "list", "watch", "delete"},
    ("trainyard.dev", "trainingjobs/status"): {"update"},
    ("trainyard.dev", "trainingjobs/finalizers"): {"update"},
    ("", "pods"): {"get", "list", "watch", "create", "delete"},
    ("", "services"): {"get", "list", "watch", "create"},
    ("events.k8s.io", "events"): {"get", "create", "patch"},
}
VIEW: Grants = {
    ("trainyard.dev", "trainingjobs"): {"get", "list", "watch"},
    ("trainyard.dev", "trainingjobs/scale"): {"get", "list", "watch"},
    ("trainyard.dev", "trainingjobs/status"): {"get", "list", "watch"},
}
EDIT: Grants = {
    ("trainyard.dev", "trainingjobs"): {"create", "delete", "deletecollection", "patch", "update"},
    ("trainyard.dev", "trainingjobs/scale"): {"patch", "update"},
}
NEVER_RESOURCES = {
    "secrets",
    "serviceaccounts",
    "serviceaccounts/token",
    "nodes",
    "nodes/proxy",
    "pods/exec",
    "pods/attach",
    "pods/portforward",
    "pods/ephemeralcontainers",
}
NEVER_VERBS = {"escalate", "bind", "impersonate"}


def grants(role: Manifest) -> Grants:
    """What a role's rules come to; a rule of any other shape than group, resource and verb is a KeyError or an assertion."""
    found: dict[tuple[str, str], set[str]] = defaultdict(set)
    for rule in role["rules"]:
        assert set(rule) == {"apiGroups", "resources", "verbs"}
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                found[group, resource] |= set(rule["verbs"])
    return found


def roles_bound_to(release: Release, account: Mapping[str, Any]) -> list[str]:
    return [
        binding["roleRef"]["name"]
        for kind in ("ClusterRoleBinding", "RoleBinding")
        for binding in release.all(kind)
        if account in binding["subjects"]
    ]


@pytest.mark.parametrize(
    ("role", "allowed"), [("trainyard", OPERATOR), ("trainyard-view", VIEW), ("trainyard-edit", EDIT)]
)
def test_roles_allow_this_and_nothing_else(release: Release, role: str, allowed: Grants) -> None:
    assert grants(release.one("ClusterRole", role)) == allowed


def test_the_operator_has_its_own_role_only(release: Release) -> None:
    pod = release.operator()["spec"]["template"]["spec"]
    account = {"kind": "ServiceAccount", "name": pod["serviceAccountName"], "namespace": "trainyard-system"}

    assert roles_bound_to(release, account) == ["trainyard"]
    assert len(release.all("ClusterRoleBinding") + release.all("RoleBinding")) == 1
    assert release.one("ServiceAccount", pod["serviceAccountName"])["automountServiceAccountToken"] is False


def test_another_account_is_bound_where_one_is_named(chart: Chart) -> None:
    release = chart.render({"serviceAccount": {"create": False, "name": "ours"}})
    account = {"kind": "ServiceAccount", "name": "ours", "namespace": "trainyard-system"}
    assert release.operator()["spec"]["template"]["spec"]["serviceAccountName"] == "ours"
    assert roles_bound_to(release, account) == ["trainyard"]


def test_no_role_of_the_chart_holds_a_dangerous_right(release: Release) -> None:
    for role in release.all("ClusterRole") + release.all("Role"):
        for (group, resource), verbs in grants(role).items():
            assert "*" not in {group, resource, *verbs}
            assert not any("*" in part for part in resource.split("/"))
            assert resource not in NEVER_RESOURCES
            assert group != "rbac.authorization.k8s.io"
            assert not verbs & NEVER_VERBS


@pytest.mark.parametrize(("role", "into"), [("trainyard-view", "view"), ("trainyard-edit", "edit")])
def test_users_roles_aggregate_into_the_clusters_own(release: Release, role: str, into: str) -> None:
    labels = release.one("ClusterRole", role)["metadata"]["labels"]
    aggregated = {key for key in labels if key.startswith("rbac.authorization.k8s.io/")}
    assert aggregated == {f"rbac.authorization.k8s.io/aggregate-to-{into}"}


def test_the_operators_role_aggregates_nowhere(release: Release) -> None:
    labels = release.one("ClusterRole", "trainyard")["metadata"]["labels"]
    assert not [key for key in labels if key.startswith("rbac.authorization.k8s.io/")]
