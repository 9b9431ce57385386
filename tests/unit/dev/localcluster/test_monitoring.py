"""The settings of metrics-server, Prometheus and prometheus-adapter."""

import json
from pathlib import Path
from typing import Any

from dev.localcluster import monitoring, pki, tools
from dev.localcluster.addresses import GATEWAY
from dev.localcluster.paths import from_environment


def test_each_aggregated_api_has_service_address_and_certificate() -> None:
    (certificate,) = (each for each in pki.CONTROL_PLANE if each.name == "metrics")
    for group, version, name in monitoring.APIS:
        made = monitoring.api_service(group, version, name, "authority")
        assert made["metadata"]["name"] == f"{version}.{group}"
        service = made["spec"]["service"]
        assert f"DNS:{service['name']}.{service['namespace']}.svc" in certificate.alternative_names
        endpoints = monitoring.endpoints(name, monitoring.SERVICES[name])
        assert (
            endpoints["metadata"]["labels"]["kubernetes.io/service-name"]
            == monitoring.service(name)["metadata"]["name"]
        )
        assert endpoints["endpoints"][0]["addresses"] == [GATEWAY]
        # A port of a Service and of its endpoints belong together by name.
        assert endpoints["ports"][0]["name"] == monitoring.service(name)["spec"]["ports"][0]["name"]


def test_prometheus_scrapes_annotated_targets_and_kubelets(tmp_path: Path) -> None:
    at = from_environment({"XDG_CACHE_HOME": str(tmp_path)})
    configuration = monitoring.scrapes(at, [tmp_path / "alerts.yaml"])
    assert configuration["rule_files"] == [str(tmp_path / "alerts.yaml")]
    pods, services, kubelets = configuration["scrape_configs"]

    def kept(scrape: dict[str, Any]) -> list[str]:
        return [rule["regex"] for rule in scrape["relabel_configs"] if rule.get("action") == "keep"]

    assert (kept(pods), kept(services)) == (["metrics", "Running"], [".+-metrics", ".+", "Running"])
    for each in (pods, services):
        assert {rule.get("target_label") for rule in each["relabel_configs"]} >= {"namespace", "pod"}
        assert each["honor_labels"], "a job's namespace is not the operator's"
    assert (kubelets["scheme"], kubelets["metrics_path"]) == ("https", "/metrics/cadvisor")
    assert json.loads(json.dumps(monitoring.adapter_rules()))["rules"][0]["resources"]["overrides"].keys() == {
        "namespace",
        "pod",
    }


def test_monitoring_tools_are_built_only_when_needed() -> None:
    apart = {*tools.MONITORING, *tools.POLICIES, *tools.QUEUES, *tools.GANGS, *tools.CHART, *tools.RELEASE}
    assert not apart & {*tools.EVERYDAY}
    assert {*apart, *tools.SCALE, *tools.EVERYDAY} == tools.MODULE_OF.keys()
