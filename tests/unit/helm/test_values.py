"""Invalid values are refused by their field, before anything reaches a cluster."""

import json
import re
from collections.abc import Iterator, Mapping
from functools import reduce
from typing import Any

import pytest
import yaml

from dev.codegen.chart.other_names import ANSWERS
from tests.unit.helm.chart import CHART, Chart, RefusedError, Release, leaves
from trainyard.controller.bootstrap.settings import Settings

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
SPREAD = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}
HOST = {"fieldPath": "status.hostIP"}
KEY = {"name": "proxy", "key": "url"}


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"setings": {}}, "'setings' not allowed"),
        ({"settings": {"worker": 4}}, "'/settings': additional properties 'worker'"),
        ({"settings": {"concurrentReconciles": 0}}, "/settings/concurrentReconciles"),
        ({"settings": {"concurrentReconciles": "8"}}, "/settings/concurrentReconciles"),
        ({"settings": {"logLevel": "INFO"}}, "/settings/logLevel"),
        ({"settings": {"httpPort": 80}}, "/settings/httpPort"),
        ({"settings": {"httpPort": None}}, "missing property 'httpPort'"),
        ({"image": {"repository": "example.org/operator:1.0"}}, "/image/repository"),
        ({"image": {"tag": "latest"}}, 'image.tag: "latest" is no version'),
        ({"image": {"digest": "sha256:12"}}, "/image/digest"),
        ({"image": {"pullPolicy": "Sometimes"}}, "/image/pullPolicy"),
        ({"imagePullSecrets": ["mirror"]}, "/imagePullSecrets/0"),
        ({"crds": {"keep": "yes"}}, "/crds/keep"),
        ({"runAsUser": 0}, "/runAsUser"),
        ({"resources": {"limits": {"memory": "lots"}}}, "/resources/limits/memory"),
        ({"terminationGracePeriodSeconds": -1}, "/terminationGracePeriodSeconds"),
        ({"resources": {"limits": {"memory": -1}}}, "/resources/limits/memory"),
        ({"resources": {"limits": {"gpu": "1"}}}, "'/resources/limits': additional properties 'gpu' not allowed"),
        (
            {"resources": {"requests": {"memory": "2Gi"}}},
            "resources: a request of 2Gi memory is more than the limit of 1Gi: raise resources.limits.memory too",
        ),
        ({"resources": {"requests": {"memory": 2**31}}}, "is more than the limit of 1Gi"),
        ({"resources": {"requests": {"cpu": "1.5"}, "limits": {"cpu": "1499m"}}}, "of 1.5 cpu is more than the limit"),
        ({"tolerations": [{"effect": "Never"}]}, "/tolerations/0/effect"),
        ({"tolerations": [{"key": "a b", "operator": "Exists"}]}, "/tolerations/0/key"),
        ({"tolerations": [{}]}, "tolerations: one without a key tolerates every taint: add operator: Exists"),
        ({"tolerations": [{"operator": "Exists", "value": "x"}]}, "tolerations: operator Exists takes no value"),
        ({"tolerations": [{"key": "a", "operator": "Gt", "value": "1"}]}, "/tolerations/0/operator"),
        (
            {"tolerations": [{"key": "a", "operator": "Exists", "tolerationSeconds": 5}]},
            "tolerations: tolerationSeconds needs effect: NoExecute",
        ),
        ({"affinity": {"nodeAffinity": {"foo": 1}}}, "'/affinity/nodeAffinity': additional properties 'foo'"),
        (
            {"affinity": {"podAffinity": {REQUIRED: [{"topologyKey": "zone", "selector": {}}]}}},
            f"'/affinity/podAffinity/{REQUIRED}/0': additional properties 'selector'",
        ),
        ({"topologySpreadConstraints": [{**SPREAD, "foo": 1}]}, "additional properties 'foo' not allowed"),
        ({"topologySpreadConstraints": [{**SPREAD, "minDomains": 2}]}, "minDomains needs whenUnsatisfiable"),
        ({"topologySpreadConstraints": [SPREAD, SPREAD]}, "zone with ScheduleAnyway is there twice"),
        ({"agent": {"image": "!!!"}}, "/agent/image"),
        ({"image": {"repository": "a/..../b"}}, "/image/repository"),
        ({"metrics": {"podMonitor": {"port": "123"}}}, "/metrics/podMonitor/port"),
        (
            {"metrics": {"serviceMonitor": {"enabled": True, "interval": "1m", "scrapeTimeout": "1m1ms"}}},
            "metrics.serviceMonitor: scrapeTimeout 1m1ms is longer than interval 1m, which Prometheus refuses",
        ),
        (
            {
                "metrics": {"podMonitor": {"enabled": True, "interval": "5s", "scrapeTimeout": "30s"}},
                "networkPolicy": {"jobs": {"enabled": False}},
            },
            "metrics.podMonitor: scrapeTimeout 30s is longer than interval 5s",
        ),
        (
            {"metrics": {"podMonitor": {"enabled": True}}},
            "metrics.podMonitor: networkPolicy.jobs.enabled blocks scrapes of workers",
        ),
        (
            {"serviceAccount": {"create": False}, "watchNamespaces": ["lab"]},
            "serviceAccount: the account `default`",
        ),
        (
            {"serviceAccount": {"name": "default"}, "admission": {"enabled": True, "guardServiceAccounts": True}},
            "serviceAccount: the account `default`",
        ),
        ({"commonLabels": {"team": "a/b"}}, "/commonLabels/team"),
        ({"podAnnotations": {"answer": 42}}, "/podAnnotations/answer"),
        ({"metrics": {"service": {"port": 0}}}, "/metrics/service/port"),
        ({"rbac": {"create": 1}}, "/rbac/create"),
        ({"replicas": 0}, "/replicas"),
        ({"leaderElection": {"leaseDurationSeconds": 1}}, "/leaderElection/leaseDurationSeconds"),
        ({"leaderElection": {"leaseDurationSeconds": None}}, "missing property 'leaseDurationSeconds'"),
        (
            {"leaderElection": {"enabled": False}},
            "replicas: 2 operators without an election would all reconcile the same jobs: set 1, or leaderElection.enabled",
        ),
        ({"coordinator": {"port": 443}}, "/coordinator/port"),
        ({"coordinator": {"tls": {"secret": "mine"}}}, "'/coordinator/tls': additional properties 'secret'"),
        ({"coordinator": {"tls": {"existingSecret": "Mine"}}}, "/coordinator/tls/existingSecret"),
        (
            {"coordinator": {"tls": {"certManager": {"enabled": True}}}},
            "coordinator.tls.certManager.issuerRef: set the",
        ),
        (
            {"coordinator": {"tls": {"certManager": {"enabled": True, "issuerRef": {"kind": "ClusterIssuer"}}}}},
            "coordinator.tls.certManager.issuerRef: set the",
        ),
        (
            {"coordinator": {"tls": {"existingSecret": "mine", "certManager": {"enabled": True}}}},
            "coordinator.tls: existingSecret and certManager.enabled exclude each other",
        ),
        ({"watchNamespaces": ["a,b"]}, "/watchNamespaces/0"),
        ({"watchNamespaces": ["Team"]}, "/watchNamespaces/0"),
        ({"watchNamespaces": ["a", "a"]}, "/watchNamespaces"),
        ({"watchNamespaces": "a"}, "/watchNamespaces"),
        ({"extraEnv": [{"value": "nameless"}]}, "/extraEnv/0"),
        (
            {"extraEnv": [{"name": "TRAINYARD_CONCURRENT_RECONCILES", "value": "9"}]},
            "extraEnv: the chart sets TRAINYARD_CONCURRENT_RECONCILES itself",
        ),
        (
            {"extraEnv": [{"name": "TRAINYARD_POD_UID", "value": "mine"}]},
            "extraEnv: the chart sets TRAINYARD_POD_UID itself",
        ),
        ({"extraEnv": [{"name": "A", "valueFrom": {}}]}, "/extraEnv/0/valueFrom"),
        (
            {"extraEnv": [{"name": "A", "valueFrom": {"fieldRef": HOST, "configMapKeyRef": KEY}}]},
            "/extraEnv/0/valueFrom",
        ),
        ({"extraEnv": [{"name": "A", "valueFrom": {"secretRef": KEY}}]}, "'/extraEnv/0/valueFrom': additional"),
        (
            {"extraEnv": [{"name": "A", "value": "", "valueFrom": {"fieldRef": HOST}}]},
            "extraEnv: A has value and valueFrom: remove one of them",
        ),
    ],
)
def test_invalid_value_names_its_field(chart: Chart, values: Mapping[str, Any], says: str) -> None:
    with pytest.raises(RefusedError, match=re.escape(says)):
        chart.render(values)


@pytest.mark.parametrize(
    "values",
    [
        {"resources": {"requests": {"memory": "1024Mi"}}},
        {"resources": {"requests": {"memory": 2**30, "ephemeral-storage": "1073741.824k"}}},
        {"resources": {"requests": {"memory": "2Gi"}, "limits": {"memory": None}}},
        {"resources": {"requests": {"cpu": "100m"}, "limits": {"cpu": 0.1}}},
        {"tolerations": [{"operator": "Exists"}, {"key": "a", "effect": "NoExecute", "tolerationSeconds": 0}]},
        {"extraEnv": [{"name": "A", "valueFrom": {"secretKeyRef": KEY}}, {"name": "B", "value": ""}, {"name": "C"}]},
        {"agent": {"image": "registry.example.org:5000/a/b--c_d:1.0@sha256:" + "0a" * 32}},
        {"metrics": {"serviceMonitor": {"enabled": True, "interval": "1m", "scrapeTimeout": "60s"}}},
        {"metrics": {"serviceMonitor": {"enabled": True, "scrapeTimeout": "60s"}}},
        {"metrics": {"serviceMonitor": {"enabled": True, "interval": "0s", "scrapeTimeout": "60s"}}},
        {"serviceAccount": {"create": False, "name": "mine"}, "watchNamespaces": ["lab"]},
        {"serviceAccount": {"create": False}},
    ],
)
def test_borderline_values_are_accepted(chart: Chart, values: Mapping[str, Any]) -> None:
    assert chart.render(values).operator()


@pytest.mark.parametrize(("name", "answer"), ANSWERS.items(), ids=list(ANSWERS))
def test_name_of_another_chart_is_answered(chart: Chart, name: str, answer: str) -> None:
    values: dict[str, Any] = {"any": 1}
    for part in reversed(name.split(".")):
        values = {part: values}
    with pytest.raises(RefusedError, match=re.escape(answer)):
        chart.render(values)


@pytest.mark.parametrize(
    ("values", "image"),
    [
        ({}, "mirror.example.org/trainyard/operator:"),
        ({"image": {"repository": "ghcr.io/x/operator"}}, "mirror.example.org/x/operator:"),
        ({"image": {"repository": "host:5000/x/operator"}}, "mirror.example.org/x/operator:"),
        ({"image": {"repository": "x/operator"}}, "mirror.example.org/x/operator:"),
    ],
)
def test_global_registry_replaces_that_of_the_image(chart: Chart, values: Mapping[str, Any], image: str) -> None:
    made = chart.render({**values, "global": {"imageRegistry": "mirror.example.org"}})
    assert made.container()["image"].startswith(image)
    assert made.environment()["TRAINYARD_AGENT_IMAGE"] == made.container()["image"]


def test_global_registry_replaces_that_of_the_agent(chart: Chart) -> None:
    values = {"global": {"imageRegistry": "mirror.example.org:5000"}, "agent": {"image": "ghcr.io/x/agent:1"}}
    assert chart.render(values).environment()["TRAINYARD_AGENT_IMAGE"] == "mirror.example.org:5000/x/agent:1"


def closed_objects(schema: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield each object of the schema with a closed list of fields, and its path."""
    if "properties" in schema:
        yield path, schema
        for name, field in schema["properties"].items():
            yield from closed_objects(field, f"{path}/{name}")
    if "items" in schema:
        yield from closed_objects(schema["items"], f"{path}[]")


def test_unknown_fields_are_refused() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    assert [path for path, item in closed_objects(schema) if item.get("additionalProperties") is not False] == []


def test_schema_and_values_have_the_same_fields() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    for path, item in closed_objects(schema):
        given = reduce(lambda field, name: field.get(name, {}), path.strip("/").split("/") if path else [], values)
        # An empty map has user-defined keys, which only the schema describes.
        if given:
            own = {name for name, field in item["properties"].items() if "const" not in field}
            assert own - {"global"} == set(given), path


def test_chart_defaults_equal_operator_defaults(release: Release, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in release.environment().items():
        monkeypatch.setenv(name, value or "a-pod")
    image = release.container()["image"]
    url = "https://trainyard-coordinator.trainyard-system.svc:8443"
    own: dict[str, Any] = {"instance": "a-pod", "pod_uid": "a-pod", "coordinator_secret": "trainyard-coordinator-cert"}
    # Only the chart knows the operators' labels, which may reach isolated workers.
    own |= {"isolate_jobs": True, "job_peers": Settings().job_peers}
    assert Settings() == Settings.model_construct(**own, agent_image=image, coordinator_url=url)


def test_operator_accepts_the_schemas_range(monkeypatch: pytest.MonkeyPatch) -> None:
    properties = json.loads((CHART / "values.schema.json").read_text())["properties"]
    ranges = properties["settings"]["properties"]
    lease = properties["leaderElection"]["properties"]["leaseDurationSeconds"]
    for level in ranges["logLevel"]["enum"]:
        monkeypatch.setenv("TRAINYARD_LOG_LEVEL", level)
        assert Settings().log_level == level
    for bound in ("minimum", "maximum"):
        monkeypatch.setenv("TRAINYARD_CONCURRENT_RECONCILES", str(ranges["concurrentReconciles"][bound]))
        monkeypatch.setenv("TRAINYARD_API_QPS", str(ranges["apiQps"][bound]))
        monkeypatch.setenv("TRAINYARD_API_BURST", str(ranges["apiBurst"][bound]))
        monkeypatch.setenv("TRAINYARD_HTTP_PORT", str(ranges["httpPort"][bound]))
        monkeypatch.setenv("TRAINYARD_LEASE_DURATION_SECONDS", str(lease[bound]))
        settings = Settings()
        assert (settings.api_qps, settings.api_burst) == (ranges["apiQps"][bound], ranges["apiBurst"][bound])
        assert settings.lease_duration_seconds == lease[bound]
        assert (settings.concurrent_reconciles, settings.http_port) == (
            ranges["concurrentReconciles"][bound],
            ranges["httpPort"][bound],
        )


def test_readme_lists_every_value() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    rows = re.findall(r"^\| `([\w.]+)` \| `(.*?)` \|", (CHART / "README.md").read_text(), flags=re.MULTILINE)
    assert [(name, json.loads(default)) for name, default in rows] == list(leaves(values))


@pytest.mark.parametrize("given", ["mirror", {"name": "mirror"}])
def test_pull_secrets_of_all_charts_are_used(chart: Chart, given: object) -> None:
    """`global.imageRegistry` is often a registry that asks for a password."""
    own = [{"name": "own"}, {"name": "mirror"}]
    made = chart.render({"imagePullSecrets": own[:1], "global": {"imagePullSecrets": [given]}})
    assert made.operator()["spec"]["template"]["spec"]["imagePullSecrets"] == own
    (test,) = made.all("Pod")
    assert test["spec"]["imagePullSecrets"] == own
    environment = {each["name"]: each["value"] for each in test["spec"]["containers"][0]["env"]}
    assert environment["HELM_TEST_PULL_SECRETS"] == "own,mirror"
