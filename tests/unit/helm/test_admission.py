"""The admission policies and their scope. tests/api/test_admission.py has what they refuse."""

import re
from typing import Any

import pytest

from tests.unit.helm.chart import Chart, RefusedError, Release

POLICY, BINDING = "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"


def names(chart: Chart, **values: Any) -> list[str]:
    release = chart.render({"admission": {"enabled": True, **values}})
    found = [each["metadata"]["name"] for each in release.all(POLICY)]
    assert [each["spec"]["policyName"] for each in release.all(BINDING)] == found
    return found


def test_none_by_default(release: Release) -> None:
    assert not release.all(POLICY)
    assert not release.all(BINDING)


@pytest.mark.parametrize("values", [{"podSecurity": "restricted"}, {"guardServiceAccounts": True}])
def test_options_without_admission_are_refused(chart: Chart, values: dict[str, Any]) -> None:
    with pytest.raises(RefusedError, match=r"need admission.enabled: set it, or remove them"):
        chart.render({"admission": values})


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


def test_pod_security_adds_a_policy(chart: Chart) -> None:
    assert names(chart) == ["trainyard-author", "trainyard-operator"]
    assert names(chart, podSecurity="baseline") == ["trainyard-author", "trainyard-operator", "trainyard-pods"]


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
    bound = {each["spec"]["policyName"]: each["spec"].get("matchResources") for each in release.all(BINDING)}
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
