"""The coordinator's Service and certificate, which agents connect to."""

import base64
import ssl
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from tests.unit.helm.chart import Chart, Release
from trainyard.coordinator.certificate import Certificate

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


def test_generated_certificate_is_verifiable(release: Release, tmp_path: Path) -> None:
    secret = release.one("Secret", mounted(release))
    for name, text in secret["data"].items():
        (tmp_path / name).write_bytes(base64.b64decode(text))
    assert secret["type"] == "kubernetes.io/tls"
    shown = Certificate(tmp_path)
    leaf = x509.load_pem_x509_certificate((tmp_path / "tls.crt").read_bytes())
    assert leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value.get_values_for_type(
        x509.DNSName
    ) == [HOST]
    assert (leaf.not_valid_after_utc - leaf.not_valid_before_utc).days == 3650
    _shake_hands(shown, HOST)
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        _shake_hands(shown, "another.svc")


def _shake_hands(shown: Certificate, name: str) -> None:
    """Perform a TLS handshake between agent and operator, without a network."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=shown.authority)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(to_client, to_server, server_hostname=name)
    server = shown.context.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(4):
        for side in (client, server):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    assert client.version() == "TLSv1.3"


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


def test_cert_manager_certificate_has_the_service_name(chart: Chart) -> None:
    issuer = {"name": "ca", "kind": "ClusterIssuer"}
    release = chart.render({"coordinator": {"tls": {"certManager": {"enabled": True, "issuerRef": issuer}}}})
    asked = release.one("Certificate", "trainyard-coordinator")["spec"]
    assert (asked["dnsNames"], asked["issuerRef"], asked["secretName"]) == ([HOST], issuer, mounted(release))


def test_disabled_coordinator_renders_nothing(chart: Chart) -> None:
    release = chart.render({"coordinator": {"enabled": False}})
    pod = release.operator()["spec"]["template"]["spec"]
    assert [volume["name"] for volume in pod["volumes"]] == ["api-access"]
    assert [port["name"] for port in release.container()["ports"]] == ["http"]
    assert not [name for name in release.environment() if "COORDINATOR" in name]
