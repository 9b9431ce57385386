"""The installed objects, and the effect of values on them."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.helm.chart import CHART, ROOT, Chart, RefusedError, Release
from trainyard.controller.bootstrap.settings import Settings

CRD = "trainingjobs.trainyard.dev"
DIGEST = "sha256:" + "ab" * 32
KEEP = "helm.sh/resource-policy"


def test_helm_lint_is_clean(chart: Chart) -> None:
    assert "1 chart(s) linted, 0 chart(s) failed" in chart.lint()


def test_installed_objects(release: Release) -> None:
    installed = {(manifest["kind"], manifest["metadata"]["name"]) for manifest in release.manifests}
    assert installed == {
        ("CustomResourceDefinition", CRD),
        ("ServiceAccount", "trainyard"),
        ("ClusterRole", "trainyard"),
        ("ClusterRoleBinding", "trainyard"),
        ("Role", "trainyard-leader-election"),
        ("RoleBinding", "trainyard-leader-election"),
        ("ClusterRole", "trainyard-view"),
        ("ClusterRole", "trainyard-edit"),
        ("ClusterRole", "trainyard-admin"),
        ("Service", "trainyard-metrics"),
        ("Service", "trainyard-coordinator"),
        ("Secret", "trainyard-coordinator-cert"),
        ("Role", "trainyard-coordinator-cert"),
        ("RoleBinding", "trainyard-coordinator-cert"),
        ("Deployment", "trainyard"),
        ("PodDisruptionBudget", "trainyard"),
        *(
            (kind, f"trainyard-{name}")
            for kind in ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
            for name in ("author", "pods", "operator", "operator-pods", "workers")
        ),
        # The objects of `helm test`.
        ("ServiceAccount", "trainyard-helm-test"),
        ("Role", "trainyard-helm-test"),
        ("RoleBinding", "trainyard-helm-test"),
        ("Pod", "trainyard-helm-test"),
    }


def test_rendering_twice_gives_the_same_bytes(chart: Chart) -> None:
    """GitOps tools compare what they render with what they applied."""
    first, second = (chart.text({"networkPolicy": {"jobs": {"enabled": True}}}) for _ in range(2))
    assert first == second


def test_optional_parts_can_be_disabled(chart: Chart) -> None:
    off = {
        "crds": {"enabled": False},
        "serviceAccount": {"create": False},
        "rbac": {"create": False, "aggregate": False},
        "metrics": {"service": {"enabled": False}},
        "coordinator": {"enabled": False},
        "podDisruptionBudget": {"enabled": False},
        "helmTest": {"enabled": False},
        "admission": {"enabled": False},
    }
    assert [manifest["kind"] for manifest in chart.render(off).manifests] == ["Deployment"]


def test_chart_ships_the_generated_crd() -> None:
    name = "trainyard.dev_trainingjobs.yaml"
    assert (CHART / "files" / name).read_bytes() == (ROOT / "crds" / name).read_bytes()


def test_crd_survives_templating(release: Release) -> None:
    rendered = release.one("CustomResourceDefinition", CRD)
    source = yaml.safe_load((ROOT / "crds" / "trainyard.dev_trainingjobs.yaml").read_text())
    assert rendered["spec"] == source["spec"]


@pytest.mark.parametrize(("crds", "annotation"), [({}, "keep"), ({"keep": True}, "keep"), ({"keep": False}, None)])
def test_uninstall_keeps_the_crd_by_default(chart: Chart, crds: dict[str, bool], annotation: str | None) -> None:
    crd = chart.render({"crds": crds}).one("CustomResourceDefinition", CRD)
    assert crd["metadata"].get("annotations", {}).get(KEEP) == annotation


@pytest.mark.parametrize(
    ("image", "reference"),
    [
        ({}, "localhost/trainyard/operator:0.1.0"),
        ({"tag": "dev"}, "localhost/trainyard/operator:dev"),
        ({"digest": DIGEST}, f"localhost/trainyard/operator@{DIGEST}"),
        ({"tag": "dev", "digest": DIGEST}, f"localhost/trainyard/operator@{DIGEST}"),
        ({"repository": "example.org:5000/a/b", "tag": "1.2.3"}, "example.org:5000/a/b:1.2.3"),
    ],
)
def test_image(chart: Chart, image: dict[str, str], reference: str) -> None:
    assert chart.render({"image": image}).container()["image"] == reference


def test_settings_become_environment_variables(chart: Chart) -> None:
    values = {
        "settings": {"logLevel": "debug", "concurrentReconciles": 32, "apiQps": 50, "apiBurst": 100, "httpPort": 9090},
        "leaderElection": {"leaseDurationSeconds": 30},
        "watchNamespaces": ["lab", "office"],
    }
    labels = {"component": "operator", "instance": "blue", "name": "trainyard"}
    operator = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "trainyard-system"}},
        "podSelector": {"matchLabels": {f"app.kubernetes.io/{name}": value for name, value in labels.items()}},
    }
    assert chart.render(values, release="blue").environment() == {
        "TRAINYARD_INSTANCE": None,
        "TRAINYARD_POD_UID": None,
        "TRAINYARD_LOG_LEVEL": "debug",
        "TRAINYARD_CONCURRENT_RECONCILES": "32",
        "TRAINYARD_API_QPS": "50",
        "TRAINYARD_API_BURST": "100",
        "TRAINYARD_HTTP_PORT": "9090",
        "TRAINYARD_HEALTH_PORT": "8081",
        "TRAINYARD_LEADER_ELECTION": "true",
        "TRAINYARD_LEASE_NAME": "blue-trainyard",
        "TRAINYARD_LEASE_DURATION_SECONDS": "30",
        "TRAINYARD_NAMESPACES": "lab,office",
        "TRAINYARD_AGENT_IMAGE": "localhost/trainyard/operator:0.1.0",
        "TRAINYARD_AGENT_IMAGE_VOLUME": "false",
        "TRAINYARD_COORDINATOR_URL": "https://blue-trainyard-coordinator.trainyard-system.svc:8443",
        "TRAINYARD_COORDINATOR_PORT": "8443",
        "TRAINYARD_COORDINATOR_SECRET": "blue-trainyard-coordinator-cert",
        "TRAINYARD_ISOLATE_JOBS": "true",
        "TRAINYARD_JOB_PEERS": json.dumps([operator], separators=(",", ":")),
    }


def test_agent_image_defaults_to_the_operators(chart: Chart) -> None:
    for values, image in (
        ({"image": {"tag": "dev"}}, "localhost/trainyard/operator:dev"),
        ({"agent": {"image": "mirror.example.com/trainyard:1"}}, "mirror.example.com/trainyard:1"),
        ({"agent": {"enabled": False}}, None),
    ):
        assert chart.render(values).environment().get("TRAINYARD_AGENT_IMAGE") == image
    asked = {"agent": {"imageVolume": True}}
    assert chart.render(asked).environment()["TRAINYARD_AGENT_IMAGE_VOLUME"] == "true"


def test_operator_gets_its_pod_identity(release: Release) -> None:
    variables = {variable["name"]: variable.get("valueFrom") for variable in release.container()["env"]}
    assert variables["TRAINYARD_INSTANCE"] == {"fieldRef": {"fieldPath": "metadata.name"}}
    assert variables["TRAINYARD_POD_UID"] == {"fieldRef": {"fieldPath": "metadata.uid"}}


def test_lease_name_matches_its_permission(chart: Chart) -> None:
    release = chart.render(release="blue")
    named = release.one("Role", "blue-trainyard-leader-election")["rules"][0]["resourceNames"]
    assert named == [release.environment()["TRAINYARD_LEASE_NAME"]]


def test_probes_and_service_have_ports_of_their_own(chart: Chart) -> None:
    release = chart.render({"settings": {"httpPort": 9090, "healthPort": 9091}})
    container = release.container()
    metrics, health, _ = container["ports"]
    probes = {name: container[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")}
    (service_port,) = release.one("Service", "trainyard-metrics")["spec"]["ports"]

    assert (metrics["name"], metrics["containerPort"]) == ("http", 9090)
    assert (health["name"], health["containerPort"]) == ("health", 9091)
    assert {name: probe["path"] for name, probe in probes.items()} == {
        "startup": "/healthz",
        "liveness": "/healthz",
        "readiness": "/readyz",
    }
    assert {probe["port"] for probe in probes.values()} == {"health"}
    assert service_port["targetPort"] == "http"


def test_extra_variables_are_added(chart: Chart) -> None:
    environment = chart.render({"extraEnv": [{"name": "NO_PROXY", "value": "10.0.0.0/8"}]}).environment()
    assert environment["NO_PROXY"] == "10.0.0.0/8"
    assert environment["TRAINYARD_CONCURRENT_RECONCILES"] == "32"


def test_rollout_keeps_a_ready_replica(release: Release) -> None:
    spec = release.operator()["spec"]
    rolling = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
    assert (spec["replicas"], spec["strategy"]) == (2, rolling)


def test_no_rolling_update_without_election(chart: Chart) -> None:
    spec = chart.render({"replicas": 1, "leaderElection": {"enabled": False}}).operator()["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})


def test_replicas_prefer_different_nodes(release: Release) -> None:
    spec = release.operator()["spec"]
    (term,) = spec["template"]["spec"]["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert term["podAffinityTerm"] == {
        "topologyKey": "kubernetes.io/hostname",
        "labelSelector": {"matchLabels": spec["selector"]["matchLabels"]},
    }


def test_selectors_match_only_the_operator(chart: Chart) -> None:
    release = chart.render({"podLabels": {"app.kubernetes.io/instance": "another"}, "commonLabels": {"team": "ml"}})
    spec = release.operator()["spec"]
    selector = spec["selector"]["matchLabels"]

    assert selector == {
        "app.kubernetes.io/name": "trainyard",
        "app.kubernetes.io/instance": "trainyard",
        "app.kubernetes.io/component": "operator",
    }
    assert selector.items() <= spec["template"]["metadata"]["labels"].items()
    assert release.one("Service", "trainyard-metrics")["spec"]["selector"] == selector
    assert {manifest["metadata"]["labels"]["team"] for manifest in release.manifests} == {"ml"}


def test_placement_values_reach_the_pod(chart: Chart) -> None:
    placement: dict[str, Any] = {
        "priorityClassName": "system-cluster-critical",
        "nodeSelector": {"kubernetes.io/arch": "amd64"},
        "tolerations": [{"key": "control-plane", "operator": "Exists", "effect": "NoSchedule"}],
        "affinity": {"nodeAffinity": {}},
        "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}],
        "terminationGracePeriodSeconds": 45,
        "imagePullSecrets": [{"name": "mirror"}],
    }
    pod = chart.render(placement).operator()["spec"]["template"]["spec"]
    gone = [(t["key"], t["tolerationSeconds"]) for t in pod["tolerations"][:2]]
    assert gone == [("node.kubernetes.io/not-ready", 30), ("node.kubernetes.io/unreachable", 30)]
    pod["tolerations"] = pod["tolerations"][2:]
    (spread,) = pod["topologySpreadConstraints"]
    own = chart.render().operator()["spec"]["selector"]
    assert spread.pop("labelSelector") == own, "Kubernetes would look at no pods without one"
    assert {field: pod[field] for field in placement} == placement


@pytest.mark.parametrize("name", ["blue", "a" * 53, "my.release", "a." + "b" * 41 + ".c", "a" * 43 + "--b"])
def test_release_names_give_valid_resource_names(chart: Chart, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    release = chart.render(release=name)
    names = {manifest["metadata"]["name"] for manifest in release.manifests} - {CRD}
    assert all(re.fullmatch(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?", derived) for derived in names)
    assert all(derived.startswith(name[:40].replace(".", "-")) for derived in names)
    assert len(names) == 14, "truncation has kept them apart"
    for setting in ("TRAINYARD_LEASE_NAME", "TRAINYARD_COORDINATOR_URL"):
        monkeypatch.setenv(setting, release.environment()[setting] or "")
    Settings()


def test_missing_crd_file_is_reported(chart: Chart, tmp_path: Path) -> None:
    """Without this check a missing CRD would only show as an operator that never becomes ready."""
    shutil.copytree(CHART, tmp_path / "trainyard")
    (tmp_path / "trainyard" / "files" / "trainyard.dev_trainingjobs.yaml").unlink()
    with pytest.raises(RefusedError, match="make generate"):
        Chart(chart.helm, tmp_path / "trainyard").render()
