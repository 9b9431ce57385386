"""The ServiceMonitor, PodMonitor and alerts of the chart."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from dev.localcluster.tools import ensure
from tests.unit.helm.chart import CHART, ROOT, Chart, RefusedError
from trainyard.controller.metrics import reference

ALERTS = CHART / "files" / "alerts.yaml"
CASES = Path(__file__).with_name("alerts.test.yaml")
RUNBOOKS = ROOT / "docs" / "runbooks"
RULES: list[dict[str, Any]] = [
    rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]
]
PEERS = {"networkPolicy": {"jobs": {"from": [{"namespaceSelector": {"matchLabels": {"team": "monitoring"}}}]}}}
ALL = {"metrics": {name: {"enabled": True} for name in ("serviceMonitor", "podMonitor", "prometheusRule")}} | PEERS


def test_service_monitor_keeps_the_jobs_namespace(chart: Chart) -> None:
    release = chart.render(ALL)
    spec = release.one("ServiceMonitor", "trainyard")["spec"]
    service = release.one("Service", "trainyard-metrics")
    assert spec["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert spec["endpoints"] == [{"port": service["spec"]["ports"][0]["name"], "honorLabels": True}]
    others = [each for each in release.all("Service") if each is not service]
    assert all(port["name"] != "http" for each in others for port in each["spec"]["ports"])


@pytest.mark.parametrize(
    ("watched", "selected"), [([], {"any": True}), (["lab", "team"], {"matchNames": ["lab", "team"]})]
)
def test_pod_monitor_covers_managed_namespaces(chart: Chart, watched: list[str], selected: dict[str, Any]) -> None:
    spec = chart.render({**ALL, "watchNamespaces": watched}).one("PodMonitor", "trainyard-workers")["spec"]
    assert spec["namespaceSelector"] == selected
    assert spec["podMetricsEndpoints"] == [{"port": "metrics"}]


def test_scrape_interval_and_labels(chart: Chart) -> None:
    chosen = {"enabled": True, "labels": {"release": "prometheus"}, "interval": "2m", "scrapeTimeout": "1m30s"}
    release = chart.render({"metrics": {"serviceMonitor": chosen, "podMonitor": {**chosen, "port": "numbers"}}} | PEERS)
    for kind, name, endpoints in (
        ("ServiceMonitor", "trainyard", "endpoints"),
        ("PodMonitor", "trainyard-workers", "podMetricsEndpoints"),
    ):
        monitor = release.one(kind, name)
        (endpoint,) = monitor["spec"][endpoints]
        assert (endpoint["interval"], endpoint["scrapeTimeout"]) == ("2m", "1m30s")
        assert monitor["metadata"]["labels"]["release"] == "prometheus"
    assert release.one("PodMonitor", "trainyard-workers")["spec"]["podMetricsEndpoints"][0]["port"] == "numbers"


def test_rule_equals_the_alerts_file(chart: Chart) -> None:
    alone = {"metrics": {"prometheusRule": {"enabled": True}}}
    assert chart.render(alone).one("PrometheusRule", "trainyard")["spec"] == yaml.safe_load(ALERTS.read_text())


def test_operator_down_is_limited_to_the_release(chart: Chart) -> None:
    release = chart.render({**ALL, "fullnameOverride": "blue"})
    spec, file = release.one("PrometheusRule", "blue")["spec"], yaml.safe_load(ALERTS.read_text())
    # Without jobLabel the Prometheus operator names a job after its Service.
    assert "jobLabel" not in release.one("ServiceMonitor", "blue")["spec"]
    service = release.one("Service", "blue-metrics")["metadata"]
    own = f'{{namespace="{service["namespace"]}", job="{service["name"]}"}}'
    file["groups"][0]["rules"][0]["expr"] = f"absent(trainyard_clock_offset_seconds{own})"
    assert spec == file


def test_alert_options_are_applied(chart: Chart) -> None:
    off = [rule["alert"] for rule in RULES if rule["alert"].startswith("TrainyardJob")] + ["TrainyardNodeAvoided"]
    wanted = {
        "enabled": True, "labels": {"role": "alerts"}, "alertLabels": {"team": "ml", "severity": "none"},
        "disabled": off, "runbookUrl": "https://wiki.example.org/runbooks/",
    }  # fmt: skip
    rule = chart.render({"metrics": {"prometheusRule": wanted}}).one("PrometheusRule", "trainyard")
    assert rule["metadata"]["labels"]["role"] == "alerts"
    groups = {group["name"]: group["rules"] for group in rule["spec"]["groups"]}
    assert groups["trainyard-jobs"] == []
    (down, *_) = groups["trainyard-operator"]
    assert down["labels"] == {"team": "ml", "severity": "critical"}, "the alert's own severity stays"
    assert down["annotations"]["runbook_url"] == "https://wiki.example.org/runbooks/TrainyardOperatorDown.md"


@pytest.mark.parametrize(
    ("metrics", "says"),
    [
        (
            {"prometheusRule": {"enabled": True, "disabled": ["Watchdog"]}},
            "there is no alert Watchdog; the alerts are Train",
        ),
        ({"prometheusRule": {"enabled": True, "runbookUrl": "wiki"}}, "/metrics/prometheusRule/runbookUrl"),
        ({"prometheusRule": {"enabled": True, "alertLabels": {"a-b": "c"}}}, "a-b"),
        ({"prometheusRule": {"enabled": True, "alertLabels": {"__name__": "c"}}}, "alertLabels: __name__ is reserved"),
        (
            {"prometheusRule": {"enabled": True, "alertLabels": {"team": "{{ .Foo"}}},
            "alertLabels.team: Prometheus accepts only",
        ),
        (
            {"prometheusRule": {"enabled": True, "alertLabels": {"team": "{{ .Foo }}"}}},
            "alertLabels.team: Prometheus accepts only",
        ),
        (
            {"prometheusRule": {"enabled": True, "alertLabels": {"t": "{{{ $labels.a }}"}}},
            "alertLabels.t: Prometheus accepts only",
        ),
        (
            {"prometheusRule": {"enabled": True, "runbookUrl": "https://a/{{ b"}},
            "runbookUrl: Prometheus evaluates two braces",
        ),
        ({"serviceMonitor": {"enabled": True, "interval": "often"}}, "/metrics/serviceMonitor/interval"),
        ({"serviceMonitor": {"enabled": True}, "service": {"enabled": False}}, "enable both"),
        ({"podMonitor": {"enabled": True, "port": "Über"}}, "/metrics/podMonitor/port"),
    ],
)
def test_invalid_values_are_refused(chart: Chart, metrics: dict[str, Any], says: str) -> None:
    with pytest.raises(RefusedError, match=re.escape(says)):
        chart.render({"metrics": metrics})


def promtool(*arguments: str | Path) -> None:
    done = subprocess.run([ensure("promtool")["promtool"], *arguments], capture_output=True, text=True, check=False)
    assert not done.returncode, done.stdout + done.stderr


def rules_of(chart: Chart, metrics: dict[str, Any], release: str = "trainyard") -> dict[str, Any]:
    """Return the rules of a release as Prometheus reads them."""
    (rule,) = chart.render({"metrics": metrics} | PEERS, release=release).all("PrometheusRule")
    return dict(rule["spec"])


@pytest.mark.parametrize(
    "text", ["ml", "", "{ml}", "}}", "{", "a { {{ $labels.namespace }}-{{$externalLabels.cluster}}{"]
)
def test_prometheus_accepts_the_charts_labels(chart: Chart, tmp_path: Path, text: str) -> None:
    wanted = {"enabled": True, "alertLabels": {"team": text}, "runbookUrl": "https://a/{b}"}
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump(rules_of(chart, {"prometheusRule": wanted})))
    promtool("check", "rules", file)


@pytest.mark.parametrize(
    ("installed", "missed"), [(["one", "two"], {"20m": 0, "40m": 1, "14h": 1}), (["one"], {"40m": 0, "14h": 0})]
)
def test_missing_release_fires_until_it_is_removed(
    chart: Chart, tmp_path: Path, installed: list[str], missed: dict[str, int]
) -> None:
    """Both releases are in one namespace."""
    for name in installed:
        group, _ = rules_of(chart, ALL["metrics"], name)["groups"]
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump({"groups": [{**group, "name": name}]}))
    series = 'trainyard_{}{{namespace="trainyard-system", job="{}-trainyard-metrics", pod="{}"}}'
    series_values = {("one", "a"): "0x900", ("two", "b"): "0x20 _x880"}
    alert = '{alertname="TrainyardOperatorDown", job="two-trainyard-metrics"}'
    case = {
        "interval": "1m",
        "input_series": [
            {"series": series.format(metric, name, pod), "values": values}
            for (name, pod), values in series_values.items()
            for metric in ("clock_offset_seconds", "invalid_jobs")
        ],
        "promql_expr_test": [
            {
                "expr": 'count by (alertname, job) (ALERTS{alertstate="firing"})',
                "eval_time": at,
                "exp_samples": [{"labels": alert, "value": count}] if count else [],
            }
            for at, count in missed.items()
        ],
    }
    cases = {"rule_files": [f"{name}.yaml" for name in installed], "evaluation_interval": "1m", "tests": [case]}
    (tmp_path / "cases.yaml").write_text(yaml.safe_dump(cases))
    promtool("test", "rules", tmp_path / "cases.yaml")


def test_each_alert_fires_in_its_case() -> None:
    promtool("test", "rules", CASES)
    tested = set(re.findall(r"Trainyard\w+", CASES.read_text()))
    assert tested == {rule["alert"] for rule in RULES}, "each has a case"


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule["alert"]))
def test_alert_has_known_metrics_and_a_runbook(rule: dict[str, Any]) -> None:
    series_values = set(re.findall(r"^\| `(\w+)` \|", reference.page(), flags=re.MULTILINE))
    used = set(re.findall(r"\b(?:trainyard|workqueue|controller_runtime)_\w+", rule["expr"]))
    assert used
    assert used <= series_values
    assert rule["labels"]["severity"] in {"critical", "warning"}
    assert rule["annotations"].keys() == {"summary", "description"}
    assert (RUNBOOKS / f"{rule['alert']}.md").read_text().startswith(f"# {rule['alert']}\n")


CLUSTER_WIDE = re.compile(r" (-A|--raw|node NODE|cordon NODE)\b|kubectl get trainingjobs`|lease ")


def test_each_runbook_command_names_its_namespace() -> None:
    commands = [
        (runbook.name, line)
        for runbook in RUNBOOKS.glob("*.md")
        for line in runbook.read_text(encoding="utf-8").splitlines()
        if "kubectl " in line
    ]
    assert commands
    assert [c for c in commands if " -n " not in c[1] and not CLUSTER_WIDE.search(c[1])] == []


def test_runbook_index_lists_each_alert() -> None:
    text = (RUNBOOKS / "README.md").read_text()
    rows = re.findall(r"^\| \[(\w+)\]\(\1\.md\) \| (\w+) \| .+ \|$", text, flags=re.MULTILINE)
    assert rows == [(rule["alert"], rule["labels"]["severity"]) for rule in RULES]
    assert {page.stem for page in RUNBOOKS.glob("*.md")} - {"README"} == {name for name, _ in rows}
