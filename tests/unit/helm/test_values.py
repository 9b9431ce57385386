"""Bad values are refused before anything reaches a cluster, and the field is named."""

import json
import re
from collections.abc import Iterator, Mapping
from functools import reduce
from typing import Any

import pytest
import yaml

from tests.unit.helm.chart import CHART, Chart, RefusedError, Release
from trainyard.controller.settings import Settings


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"setings": {}}, "'setings' not allowed"),
        ({"settings": {"worker": 4}}, "'/settings': additional properties 'worker'"),
        ({"settings": {"workers": 0}}, "/settings/workers"),
        ({"settings": {"workers": "8"}}, "/settings/workers"),
        ({"settings": {"logLevel": "INFO"}}, "/settings/logLevel"),
        ({"settings": {"httpPort": 80}}, "/settings/httpPort"),
        ({"settings": {"httpPort": None}}, "missing property 'httpPort'"),
        ({"image": {"repository": "example.org/operator:1.0"}}, "/image/repository"),
        ({"image": {"tag": "latest"}}, 'image.tag: "latest" names no version'),
        ({"image": {"digest": "sha256:12"}}, "/image/digest"),
        ({"image": {"pullPolicy": "Sometimes"}}, "/image/pullPolicy"),
        ({"imagePullSecrets": ["mirror"]}, "/imagePullSecrets/0"),
        ({"crds": {"keep": "yes"}}, "/crds/keep"),
        ({"runAsUser": 0}, "/runAsUser"),
        ({"resources": {"limits": {"memory": "lots"}}}, "/resources/limits/memory"),
        ({"terminationGracePeriodSeconds": -1}, "/terminationGracePeriodSeconds"),
        ({"tolerations": [{"effect": "Never"}]}, "/tolerations/0/effect"),
        (
            {"serviceAccount": {"create": False}, "watchNamespaces": ["lab"]},
            "serviceAccount: the operator's rights would go to the account `default`",
        ),
        (
            {"serviceAccount": {"name": "default"}, "admission": {"enabled": True, "guardServiceAccounts": True}},
            "serviceAccount: the operator's rights would go to the account `default`",
        ),
        ({"commonLabels": {"team": "a/b"}}, "/commonLabels/team"),
        ({"podAnnotations": {"answer": 42}}, "/podAnnotations/answer"),
        ({"metrics": {"service": {"port": 0}}}, "/metrics/service/port"),
        ({"rbac": {"create": 1}}, "/rbac/create"),
        ({"replicas": 0}, "/replicas"),
        ({"leaderElection": {"leaseSeconds": 1}}, "/leaderElection/leaseSeconds"),
        ({"leaderElection": {"leaseSeconds": None}}, "missing property 'leaseSeconds'"),
        (
            {"leaderElection": {"enabled": False}},
            "replicas: 2 operators without an election would all act on the same jobs: set 1, or leaderElection.enabled",
        ),
        ({"coordinator": {"port": 443}}, "/coordinator/port"),
        ({"coordinator": {"tls": {"secret": "mine"}}}, "'/coordinator/tls': additional properties 'secret'"),
        ({"coordinator": {"tls": {"existingSecret": "Mine"}}}, "/coordinator/tls/existingSecret"),
        (
            {"coordinator": {"tls": {"certManager": {"enabled": True}}}},
            "coordinator.tls.certManager.issuerRef: name the",
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
            {"extraEnv": [{"name": "TRAINYARD_WORKERS", "value": "9"}]},
            "extraEnv: TRAINYARD_WORKERS is set by the chart",
        ),
        (
            {"extraEnv": [{"name": "TRAINYARD_POD_UID", "value": "mine"}]},
            "extraEnv: TRAINYARD_POD_UID is set by the chart",
        ),
    ],
)
def test_refused_with_the_field_named(chart: Chart, values: Mapping[str, Any], says: str) -> None:
    with pytest.raises(RefusedError, match=re.escape(says)):
        chart.render(values)


def closed_objects(schema: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every object of the schema whose fields it lists, with its path."""
    if "properties" in schema:
        yield path, schema
        for name, field in schema["properties"].items():
            yield from closed_objects(field, f"{path}/{name}")
    if "items" in schema:
        yield from closed_objects(schema["items"], f"{path}[]")


def test_unknown_fields_are_errors_everywhere() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    # Kubernetes' own type, of which only the required fields are looked at here.
    open_ones = {"/topologySpreadConstraints[]"}
    assert {path for path, item in closed_objects(schema) if item.get("additionalProperties") is not False} == open_ones


def test_schema_and_values_name_the_same_fields() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    for path, item in closed_objects(schema):
        given = reduce(lambda field, name: field.get(name, {}), path.strip("/").split("/") if path else [], values)
        # An empty one is the user's to fill: the schema alone says with what.
        if given:
            assert set(item["properties"]) - {"global"} == set(given), path


def test_the_charts_defaults_are_the_operators(release: Release, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in release.environment().items():
        monkeypatch.setenv(name, value or "a-pod")
    image = release.container()["image"]
    url = "https://trainyard-coordinator.trainyard-system.svc:8443"
    own = {"instance": "a-pod", "pod_uid": "a-pod"}
    assert Settings() == Settings.model_construct(**own, agent_image=image, coordinator_url=url)


def test_the_operator_takes_the_whole_range_that_the_schema_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    properties = json.loads((CHART / "values.schema.json").read_text())["properties"]
    ranges = properties["settings"]["properties"]
    lease = properties["leaderElection"]["properties"]["leaseSeconds"]
    for level in ranges["logLevel"]["enum"]:
        monkeypatch.setenv("TRAINYARD_LOG_LEVEL", level)
        assert Settings().log_level == level
    for bound in ("minimum", "maximum"):
        monkeypatch.setenv("TRAINYARD_WORKERS", str(ranges["workers"][bound]))
        monkeypatch.setenv("TRAINYARD_API_QPS", str(ranges["apiQps"][bound]))
        monkeypatch.setenv("TRAINYARD_API_BURST", str(ranges["apiBurst"][bound]))
        monkeypatch.setenv("TRAINYARD_HTTP_PORT", str(ranges["httpPort"][bound]))
        monkeypatch.setenv("TRAINYARD_LEASE_SECONDS", str(lease[bound]))
        settings = Settings()
        assert (settings.api_qps, settings.api_burst) == (ranges["apiQps"][bound], ranges["apiBurst"][bound])
        assert settings.lease_seconds == lease[bound]
        assert (settings.workers, settings.http_port) == (ranges["workers"][bound], ranges["httpPort"][bound])


def leaves(values: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted names and defaults, as the README lists them; `resources` is one value to its reader."""
    for name, value in values.items():
        here = f"{path}{name}"
        if isinstance(value, dict) and value and here != "resources":
            yield from leaves(value, f"{here}.")
        else:
            yield here, value


def test_the_readme_lists_every_value_with_its_default() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    rows = re.findall(r"^\| `([\w.]+)` \| `(.*?)` \|", (CHART / "README.md").read_text(), flags=re.MULTILINE)
    assert [(name, json.loads(default)) for name, default in rows] == list(leaves(values))
