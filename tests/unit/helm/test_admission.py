"""The admission policies and their scope. tests/api/test_admission.py has what they refuse."""

import re
from typing import Any

import pytest

from tests.unit.helm.chart import Chart, RefusedError

POLICY, BINDING = "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"


def names(chart: Chart, **values: Any) -> list[str]:
    release = chart.render({"admission": values})
    found = [each["metadata"]["name"] for each in release.all(POLICY)]
    assert [each["spec"]["policyName"] for each in release.all(BINDING)] == found
    return sorted(found)


def test_admission_can_be_turned_off(chart: Chart) -> None:
    release = chart.render({"admission": {"enabled": False}})
    assert not release.all(POLICY)
    assert not release.all(BINDING)


def test_guard_without_admission_is_refused(chart: Chart) -> None:
    with pytest.raises(RefusedError, match=r"guardServiceAccounts needs admission.enabled: set it, or remove"):
        chart.render({"admission": {"enabled": False, "guardServiceAccounts": True}})


def test_misspelt_peer_selector_is_refused(chart: Chart) -> None:
    peer = {"podSelector": {"matchLabel": {"app": "x"}}}
    for values in ({"metricsFrom": [peer]}, {"jobs": {"from": [peer]}}):
        with pytest.raises(RefusedError, match="matchLabel"):
            chart.render({"networkPolicy": values})


def test_ports_must_differ(chart: Chart) -> None:
    with pytest.raises(RefusedError, match=r"coordinator.port and settings.httpPort are both 8443"):
        chart.render({"settings": {"httpPort": 8443}})


@pytest.mark.parametrize("other", ["settings.httpPort", "coordinator.port"])
def test_probes_have_a_port_of_their_own(chart: Chart, other: str) -> None:
    port = {"settings.httpPort": 8080, "coordinator.port": 8443}[other]
    with pytest.raises(RefusedError, match=f"settings.healthPort and {other} are both {port}"):
        chart.render({"settings": {"healthPort": port}})


def test_pod_security_adds_two_policies(chart: Chart) -> None:
    always = ["trainyard-author", "trainyard-operator", "trainyard-workers"]
    assert names(chart, podSecurity="") == always
    assert names(chart) == sorted([*always, "trainyard-pods", "trainyard-operator-pods"])


def test_operators_pods_meet_the_authors_standard(chart: Chart) -> None:
    release = chart.render({"admission": {"podSecurity": "restricted"}})
    theirs, ours = (release.one(POLICY, f"trainyard-{name}")["spec"] for name in ("pods", "operator-pods"))
    assert theirs["validations"] == ours["validations"]


def test_restricted_includes_baseline(chart: Chart) -> None:
    rules = {}
    for standard in ("baseline", "restricted"):
        release = chart.render({"admission": {"enabled": True, "podSecurity": standard}})
        rules[standard] = release.one(POLICY, "trainyard-pods")["spec"]["validations"]
    count = len(rules["baseline"])
    assert rules["restricted"][:count] == rules["baseline"]
    assert len(rules["restricted"]) > count


def test_service_accounts_are_guarded_if_enabled(chart: Chart) -> None:
    for guarded in (False, True):
        release = chart.render({"admission": {"enabled": True, "guardServiceAccounts": guarded}})
        rules = release.one(POLICY, "trainyard-author")["spec"]["validations"]
        assert any("check('use')" in each["expression"] for each in rules) == guarded


def test_policies_cover_only_watched_namespaces(chart: Chart) -> None:
    release = chart.render({"admission": {"enabled": True}, "watchNamespaces": ["lab"]})
    before = "trainyard-system-"
    assert all(each["metadata"]["name"].startswith(before) for each in release.all(POLICY)), "one of each release"
    bound = {
        each["spec"]["policyName"].removeprefix(before): each["spec"].get("matchResources")
        for each in release.all(BINDING)
    }
    (selector,) = bound["trainyard-author"]["namespaceSelector"]["matchExpressions"]
    assert selector == {"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["lab"]}
    assert bound["trainyard-operator"] is None, "no other account gets its permissions, in any namespace"


def test_policy_matches_the_operators_account(chart: Chart) -> None:
    release = chart.render({"admission": {"enabled": True}, "serviceAccount": {"create": False, "name": "mine"}})
    (condition,) = release.one(POLICY, "trainyard-operator")["spec"]["matchConditions"]
    account = release.operator()["spec"]["template"]["spec"]["serviceAccountName"]
    assert condition["expression"].endswith(f":{account}'")


def test_unknown_standard_is_refused(chart: Chart) -> None:
    with pytest.raises(RefusedError, match=re.escape("/admission/podSecurity")):
        chart.render({"admission": {"enabled": True, "podSecurity": "strict"}})
