"""The operator's NetworkPolicy and disruption budget."""

import re
from typing import Any

import pytest

from tests.unit.helm.chart import Chart, RefusedError, Release
from trainyard.api.constants import LABEL_JOB_NAME
from trainyard.controller.bootstrap.settings import Settings

WORKERS = {"matchExpressions": [{"key": LABEL_JOB_NAME, "operator": "Exists"}]}


def policy(chart: Chart, values: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    release = chart.render({"networkPolicy": {"enabled": True, **(values or {})}, **more})
    spec = dict(release.one("NetworkPolicy", "trainyard")["spec"])
    pod = release.operator()["spec"]["template"]
    assert spec["podSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    named = {port["name"] for port in release.container()["ports"]}
    # The kubelet is always admitted to the port of the probes.
    assert {port["port"] for rule in spec["ingress"] for port in rule["ports"]} == named - {"health"}
    return spec


def test_ingress_and_egress_of_the_operator(chart: Chart) -> None:
    spec = policy(chart)
    metrics, workers = spec["ingress"]
    assert metrics["from"] == [{"podSelector": {}}]
    assert workers["from"] == [{"podSelector": WORKERS, "namespaceSelector": {}}]
    assert spec["policyTypes"] == ["Ingress", "Egress"]
    assert spec["egress"] == [{"ports": [{"port": 443, "protocol": "TCP"}, {"port": 6443, "protocol": "TCP"}]}]


def test_configured_peers_narrow_the_policy(chart: Chart) -> None:
    prometheus = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    server = {"ports": [6443], "cidrs": ["10.1.2.3/32", "fd00::1/128"]}
    spec = policy(chart, {"metricsFrom": [prometheus], "apiServer": server}, watchNamespaces=["lab", "team"])
    metrics, workers = spec["ingress"]
    assert metrics["from"] == [prometheus]
    (selector,) = workers["from"][0]["namespaceSelector"]["matchExpressions"]
    assert selector == {"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["lab", "team"]}
    (out,) = spec["egress"]
    assert out["ports"] == [{"port": 6443, "protocol": "TCP"}]
    assert out["to"] == [{"ipBlock": {"cidr": "10.1.2.3/32"}}, {"ipBlock": {"cidr": "fd00::1/128"}}]


def test_only_prometheus_is_admitted_without_coordinator(chart: Chart) -> None:
    assert len(policy(chart, coordinator={"enabled": False})["ingress"]) == 1


def test_operator_and_configured_peers_reach_workers(chart: Chart, monkeypatch: pytest.MonkeyPatch) -> None:
    prometheus = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    release = chart.render({"networkPolicy": {"jobs": {"enabled": True, "from": [prometheus]}}})
    assert not release.all("NetworkPolicy")
    for name, value in release.environment().items():
        monkeypatch.setenv(name, value or "a-pod")
    settings = Settings()
    assert settings.isolate_jobs
    operator, other = settings.job_peers
    assert other == prometheus
    assert operator["namespaceSelector"] == {"matchLabels": {"kubernetes.io/metadata.name": "trainyard-system"}}
    labels = release.operator()["spec"]["template"]["metadata"]["labels"]
    assert operator["podSelector"]["matchLabels"].items() <= labels.items()


def test_jobs_are_isolated_unless_turned_off(chart: Chart, release: Release) -> None:
    assert release.environment()["TRAINYARD_ISOLATE_JOBS"] == "true"
    off = chart.render({"networkPolicy": {"jobs": {"enabled": False}}})
    assert not {"TRAINYARD_ISOLATE_JOBS", "TRAINYARD_JOB_PEERS"} & off.environment().keys()


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"apiServer": {"ports": []}}, "/networkPolicy/apiServer/ports"),
        ({"apiServer": {"cidrs": ["10.0.0.1"]}}, "/networkPolicy/apiServer/cidrs/0"),
        ({"apiServer": {"cidrs": ["10.0.0.0/33"]}}, "/networkPolicy/apiServer/cidrs/0"),
        ({"apiServer": {"cidrs": ["fd00::/129"]}}, "/networkPolicy/apiServer/cidrs/0"),
        ({"metricsFrom": [{"ipBlock": {"cidr": "10.0.0.0/99"}}]}, "/networkPolicy/metricsFrom/0/ipBlock/cidr"),
        ({"metricsFrom": [{}]}, "/networkPolicy/metricsFrom/0"),
        ({"jobs": {"from": [{}]}}, "/networkPolicy/jobs/from/0"),
        ({"jobs": {"from": [{"podselector": {}}]}}, "/networkPolicy/jobs/from/0"),
        (
            {"metricsFrom": [{"ipBlock": {"cidr": "10.0.0.0/8"}, "podSelector": {}}]},
            "/networkPolicy/metricsFrom/0",
        ),
        (
            {"jobs": {"from": [{"podSelector": {"matchLabels": {"app": "my prometheus"}}}]}},
            "/networkPolicy/jobs/from/0/podSelector/matchLabels/app",
        ),
        (
            {"jobs": {"from": [{"podSelector": {"matchExpressions": [{"key": "app", "operator": "In"}]}}]}},
            "/networkPolicy/jobs/from/0/podSelector/matchExpressions/0",
        ),
        (
            {
                "jobs": {
                    "from": [
                        {"podSelector": {"matchExpressions": [{"key": "app", "operator": "Exists", "values": ["a"]}]}}
                    ]
                }
            },
            "/networkPolicy/jobs/from/0/podSelector/matchExpressions/0",
        ),
        ({"jobs": {"enabled": None}}, "'/networkPolicy/jobs': missing property 'enabled'"),
    ],
)
def test_invalid_values_are_refused(chart: Chart, values: dict[str, Any], says: str) -> None:
    with pytest.raises(RefusedError, match=re.escape(says)):
        chart.render({"networkPolicy": {"enabled": True, **values}})


def test_drain_evicts_one_replica_at_a_time(chart: Chart) -> None:
    release = chart.render()
    spec = release.one("PodDisruptionBudget", "trainyard")["spec"]
    assert spec["maxUnavailable"] == 1
    assert spec["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
    labels = release.operator()["spec"]["template"]["metadata"]["labels"]
    assert spec["selector"]["matchLabels"].items() <= labels.items()
    assert not chart.render({"replicas": 1}).all("PodDisruptionBudget")
