"""The coordinator's Service and certificate, which agents connect to."""

from typing import Any

import pytest

from tests.unit.helm.chart import Chart, Release

HOST = "trainyard-coordinator.trainyard-system.svc"


def mounted(release: Release) -> str:
    """Return the name of the Secret that the operator mounts."""
    pod = release.operator()["spec"]["template"]["spec"]
    _, volume = pod["volumes"]
    _, mount = pod["containers"][0]["volumeMounts"]
    assert (mount["name"], mount["mountPath"], mount["readOnly"]) == (volume["name"], "/etc/trainyard/tls", True)
    name: str = volume["secret"]["secretName"]
    return name


def test_coordinator_port_is_consistent(chart: Chart) -> None:
    release = chart.render({"coordinator": {"port": 9443}})
    service = release.one("Service", "trainyard-coordinator")["spec"]
    (listed,) = [port for port in release.container()["ports"] if port["name"] == "coordinator"]
    assert service["clusterIP"] == "None"
    assert service["selector"] == release.operator()["spec"]["selector"]["matchLabels"]
    assert [(port["port"], port["targetPort"]) for port in service["ports"]] == [(9443, "coordinator")]
    assert (listed["containerPort"], release.environment()["TRAINYARD_COORDINATOR_PORT"]) == (9443, "9443")
    assert release.environment()["TRAINYARD_COORDINATOR_URL"] == f"https://{HOST}:9443"


def test_operator_writes_the_secret_that_it_may_write(release: Release) -> None:
    name = release.environment()["TRAINYARD_COORDINATOR_SECRET"]
    (rule,) = release.one("Role", "trainyard-coordinator-cert")["rules"]
    secret = release.one("Secret", str(name))
    assert (rule["resourceNames"], secret["metadata"]["namespace"]) == ([name], "trainyard-system")
    assert secret["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}


def test_certificate_of_an_earlier_chart_is_mounted(release: Release) -> None:
    assert mounted(release) == "trainyard-coordinator-tls"
    assert "trainyard-coordinator-tls" not in {secret["metadata"]["name"] for secret in release.all("Secret")}


@pytest.mark.parametrize(
    ("tls", "secret"),
    [
        ({"existingSecret": "mine"}, "mine"),
        ({"certManager": {"enabled": True, "issuerRef": {"name": "ca"}}}, "trainyard-coordinator-cert-manager-tls"),
    ],
)
def test_existing_secret_is_mounted(chart: Chart, tls: dict[str, Any], secret: str) -> None:
    release = chart.render({"coordinator": {"tls": tls}})
    assert (mounted(release), release.all("Secret")) == (secret, [])
    assert "TRAINYARD_COORDINATOR_SECRET" not in release.environment()


def test_cert_manager_certificate_has_the_service_name(chart: Chart) -> None:
    issuer = {"name": "ca", "kind": "ClusterIssuer"}
    release = chart.render({"coordinator": {"tls": {"certManager": {"enabled": True, "issuerRef": issuer}}}})
    asked = release.one("Certificate", "trainyard-coordinator")["spec"]
    assert (asked["dnsNames"], asked["issuerRef"], asked["secretName"]) == ([HOST], issuer, mounted(release))


def test_disabled_coordinator_renders_nothing(chart: Chart) -> None:
    release = chart.render({"coordinator": {"enabled": False}})
    pod = release.operator()["spec"]["template"]["spec"]
    assert [volume["name"] for volume in pod["volumes"]] == ["api-access"]
    assert [port["name"] for port in release.container()["ports"]] == ["http", "health"]
    assert not [name for name in release.environment() if "COORDINATOR" in name]
