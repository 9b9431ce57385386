"""The operator's permissions as a list: a new rule must be added here too, and be reviewed."""

from collections.abc import Mapping
from typing import Any

import pytest

from tests.support.granted_permissions import CERTIFICATE, ELECTION, KUEUE, KUEUE_CLASSES, OPERATOR, Grants, grants
from tests.unit.helm.chart import Chart, Release

ISOLATION = {("networking.k8s.io", "networkpolicies"): {"get", "create"}}
VIEW: Grants = {
    ("trainyard.dev", "trainingjobs"): {"get", "list", "watch"},
    ("trainyard.dev", "trainingjobs/scale"): {"get", "list", "watch"},
    ("trainyard.dev", "trainingjobs/status"): {"get", "list", "watch"},
}
ALL_VERBS = {"create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"}
EDIT: Grants = {
    ("trainyard.dev", "trainingjobs"): ALL_VERBS,
    ("trainyard.dev", "trainingjobs/scale"): {"get", "patch", "update"},
    ("trainyard.dev", "trainingjobs/status"): {"get"},
}
ADMIN: Grants = {
    ("trainyard.dev", "trainingjobs"): ALL_VERBS,
    ("trainyard.dev", "trainingjobs/scale"): ALL_VERBS,
    ("trainyard.dev", "trainingjobs/status"): ALL_VERBS,
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


def roles_bound_to(release: Release, account: Mapping[str, Any]) -> list[tuple[str, str | None, str]]:
    """Return kind, namespace and name of each role, and check that no other account is bound to it."""
    bindings = release.all("ClusterRoleBinding") + release.all("RoleBinding")
    # `helm test` has its own account: test_helm_test.py.
    bindings = [each for each in bindings if not each["metadata"]["name"].endswith("-helm-test")]
    assert all(binding["subjects"] == [account] for binding in bindings)
    return [
        (binding["roleRef"]["kind"], binding["metadata"].get("namespace"), binding["roleRef"]["name"])
        for binding in bindings
    ]


def account(release: Release) -> dict[str, str]:
    pod = release.operator()["spec"]["template"]["spec"]
    return {"kind": "ServiceAccount", "name": pod["serviceAccountName"], "namespace": "trainyard-system"}


@pytest.mark.parametrize(
    ("role", "allowed"),
    [
        ("trainyard", {**OPERATOR, **ISOLATION}),
        ("trainyard-view", VIEW),
        ("trainyard-edit", EDIT),
        ("trainyard-admin", ADMIN),
    ],
)
def test_roles_allow_exactly_these_permissions(release: Release, role: str, allowed: Grants) -> None:
    assert grants(release.one("ClusterRole", role)) == allowed


def test_kueue_permissions_need_their_value(chart: Chart) -> None:
    release = chart.render({"kueue": {"enabled": True}})
    assert grants(release.one("ClusterRole", "trainyard")) == {**OPERATOR, **ISOLATION, **KUEUE}
    assert grants(release.one("ClusterRole", "trainyard-kueue")) == KUEUE_CLASSES
    bound = [("ClusterRole", None, "trainyard"), ("ClusterRole", None, "trainyard-kueue"), *CLUSTER_WIDE[1:]]
    assert roles_bound_to(release, account(release)) == bound


def test_network_policy_permission_needs_its_value(chart: Chart) -> None:
    release = chart.render({"networkPolicy": {"jobs": {"enabled": False}}})
    assert grants(release.one("ClusterRole", "trainyard")) == OPERATOR


def test_compute_domain_permission_needs_its_value(chart: Chart) -> None:
    release = chart.render({"computeDomains": {"enabled": True}})
    domains = {("resource.nvidia.com", "computedomains"): {"get", "create"}}
    assert grants(release.one("ClusterRole", "trainyard")) == {**OPERATOR, **ISOLATION, **domains}


def test_node_permission_needs_its_value(chart: Chart) -> None:
    for namespaces in ([], ["lab"]):
        release = chart.render({"topology": {"readNodes": True}, "watchNamespaces": namespaces})
        assert grants(release.one("ClusterRole", "trainyard-nodes")) == {("", "nodes"): {"list", "watch"}}
        assert ("ClusterRole", None, "trainyard-nodes") in roles_bound_to(release, account(release))


@pytest.mark.parametrize(
    ("scheduler", "group"),
    [
        ("native", "scheduling.k8s.io"),
        ("volcano", "scheduling.volcano.sh"),
        ("coscheduling", "scheduling.x-k8s.io"),
    ],
)
def test_each_gang_scheduler_adds_its_own_permission(chart: Chart, scheduler: str, group: str) -> None:
    values = {"gangs": {"schedulers": [scheduler]}}
    allowed = {**OPERATOR, **ISOLATION, (group, "podgroups"): {"get", "create", "deletecollection"}}
    assert grants(chart.render(values).one("ClusterRole", "trainyard")) == allowed
    watched = chart.render({**values, "watchNamespaces": ["lab"]})
    assert watched.all("ClusterRole") == []
    [role] = [role for role in watched.all("Role") if role["metadata"]["name"] == "trainyard"]
    assert grants(role) == allowed


def test_gang_schedulers_are_guarded_by_the_policy(chart: Chart) -> None:
    def guarded(release: Release) -> list[str]:
        policy = release.one("ValidatingAdmissionPolicy", "trainyard-operator")
        rules = policy["spec"]["matchConstraints"]["resourceRules"]
        return [group for rule in rules if rule["resources"] == ["podgroups"] for group in rule["apiGroups"]]

    assert guarded(chart.render()) == []
    values = {"gangs": {"schedulers": ["volcano", "native"]}}
    assert guarded(chart.render(values)) == ["scheduling.volcano.sh", "scheduling.k8s.io"]


CLUSTER_WIDE = [
    ("ClusterRole", None, "trainyard"),
    ("Role", "trainyard-system", "trainyard-leader-election"),
    ("Role", "trainyard-system", "trainyard-coordinator-cert"),
]


def test_operator_has_only_its_own_roles(release: Release) -> None:
    assert roles_bound_to(release, account(release)) == CLUSTER_WIDE
    assert release.one("ServiceAccount", account(release)["name"])["automountServiceAccountToken"] is False


def test_lease_permission_is_minimal(chart: Chart, release: Release) -> None:
    role = release.one("Role", "trainyard-leader-election")
    assert (grants(role), role["metadata"]["namespace"]) == (ELECTION, "trainyard-system")
    alone = chart.render({"replicas": 1, "leaderElection": {"enabled": False}, "helmTest": {"enabled": False}})
    assert roles_bound_to(alone, account(alone)) == [CLUSTER_WIDE[0], CLUSTER_WIDE[2]]


def test_secret_permission_covers_one_name(release: Release) -> None:
    role = release.one("Role", "trainyard-coordinator-cert")
    assert (grants(role), role["metadata"]["namespace"]) == (CERTIFICATE, "trainyard-system")
    assert release.one("Secret", "trainyard-coordinator-cert").keys().isdisjoint({"data", "stringData"})


@pytest.mark.parametrize(
    "coordinator",
    [
        {"enabled": False},
        {"tls": {"existingSecret": "mine"}},
        {"tls": {"certManager": {"enabled": True, "issuerRef": {"name": "ca"}}}},
    ],
)
def test_other_certificates_need_no_secret_permission(chart: Chart, coordinator: dict[str, Any]) -> None:
    release = chart.render({"coordinator": coordinator})
    assert roles_bound_to(release, account(release)) == CLUSTER_WIDE[:2]
    assert release.all("Secret") == []


def test_watched_namespaces_get_no_cluster_role(chart: Chart) -> None:
    release = chart.render({"watchNamespaces": ["lab", "trainyard-system"]})
    assert release.all("ClusterRole") + release.all("ClusterRoleBinding") == []
    assert roles_bound_to(release, account(release)) == [
        ("Role", "lab", "trainyard"),
        ("Role", "trainyard-system", "trainyard"),
        ("Role", "trainyard-system", "trainyard-leader-election"),
        ("Role", "trainyard-system", "trainyard-coordinator-cert"),
    ]
    events = ("events.k8s.io", "events")
    assert grants(release.one("Role", "trainyard-leader-election")) == {**ELECTION, events: OPERATOR[events] - {"list"}}
    own = [role for role in release.all("Role") if role["metadata"]["name"] == "trainyard"]
    assert [(role["metadata"]["namespace"], grants(role)) for role in own] == [
        ("lab", {**OPERATOR, **ISOLATION}),
        ("trainyard-system", {**OPERATOR, **ISOLATION}),
    ]


def test_configured_account_is_bound(chart: Chart) -> None:
    release = chart.render({"serviceAccount": {"create": False, "name": "ours"}})
    assert account(release)["name"] == "ours"
    assert roles_bound_to(release, account(release)) == CLUSTER_WIDE


def test_no_role_has_a_dangerous_permission(release: Release) -> None:
    for role in release.all("ClusterRole") + release.all("Role"):
        for (group, resource), verbs in grants(role).items():
            assert "*" not in {group, resource, *verbs}
            assert not any("*" in part for part in resource.split("/"))
            assert resource not in NEVER_RESOURCES
            assert group != "rbac.authorization.k8s.io"
            assert not verbs & NEVER_VERBS


@pytest.mark.parametrize(("role", "into"), [("trainyard-view", "view"), ("trainyard-edit", "edit")])
def test_user_roles_aggregate_into_cluster_roles(release: Release, role: str, into: str) -> None:
    labels = release.one("ClusterRole", role)["metadata"]["labels"]
    aggregated = {key for key in labels if key.startswith("rbac.authorization.k8s.io/")}
    assert aggregated == {f"rbac.authorization.k8s.io/aggregate-to-{into}"}


def test_operator_role_aggregates_nowhere(release: Release) -> None:
    labels = release.one("ClusterRole", "trainyard")["metadata"]["labels"]
    assert not [key for key in labels if key.startswith("rbac.authorization.k8s.io/")]
