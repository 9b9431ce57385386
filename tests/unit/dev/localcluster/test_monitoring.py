"""What metrics-server, Prometheus and prometheus-adapter are told."""

import json
from pathlib import Path
from typing import Any

from dev.localcluster import monitoring, pki, tools
from dev.localcluster.addresses import GATEWAY
from dev.localcluster.paths import from_environment


def test_all_that_answers_for_an_api_has_a_service_an_address_and_a_name_in_the_certificate() -> None:
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


def test_prometheus_asks_those_that_say_where_and_the_kubelets(tmp_path: Path) -> None:
    at = from_environment({"XDG_CACHE_HOME": str(tmp_path)})
    told = monitoring.scrapes(at, [tmp_path / "alerts.yaml"])
    assert told["rule_files"] == [str(tmp_path / "alerts.yaml")]
    pods, services, kubelets = told["scrape_configs"]

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


def test_none_of_it_is_built_for_a_cluster_without() -> None:
    apart = {*tools.MONITORING, *tools.POLICIES, *tools.CHART, *tools.RELEASE}
    assert not apart & {*tools.EVERYDAY}
    assert {*apart, *tools.SCALE, *tools.EVERYDAY} == tools.MODULE_OF.keys()
