"""The dashboards as ConfigMaps for Grafana's sidecar."""

import json

import pytest

from dev.codegen.dashboards.__main__ import BOARDS, text
from tests.unit.helm.chart import Chart, RefusedError


def test_none_by_default(chart: Chart) -> None:
    assert not chart.render().all("ConfigMap")


def test_each_dashboard_has_its_own_configmap(chart: Chart) -> None:
    made = chart.render({"metrics": {"dashboards": {"enabled": True}}}).all("ConfigMap")
    assert {each["metadata"]["name"] for each in made} == {
        "trainyard-fleet-dashboard", "trainyard-job-dashboard", "trainyard-operator-dashboard",
    }  # fmt: skip
    found = {name: content for each in made for name, content in each["data"].items()}
    assert found == {f"{board.uid}.json": text(board) for board in BOARDS}
    for each in made:
        assert each["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert each["metadata"]["annotations"] == {"grafana_folder": "Trainyard"}
        assert len(json.dumps(each)) < 900_000, "a ConfigMap has room for a mebibyte"


def test_sidecar_labels_and_namespace(chart: Chart) -> None:
    asked = {
        "enabled": True,
        "namespace": "monitoring",
        "labels": {"grafana": "yes"},
        "annotations": {"folder": "Jobs"},
    }
    for each in chart.render({"metrics": {"dashboards": asked}}).all("ConfigMap"):
        assert each["metadata"]["namespace"] == "monitoring"
        assert each["metadata"]["labels"]["grafana"] == "yes"
        assert each["metadata"]["annotations"]["folder"] == "Jobs"


def test_namespace_must_be_a_name(chart: Chart) -> None:
    with pytest.raises(RefusedError, match="/metrics/dashboards/namespace"):
        chart.render({"metrics": {"dashboards": {"enabled": True, "namespace": "Monitoring!"}}})
