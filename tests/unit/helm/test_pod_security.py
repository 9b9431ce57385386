"""The operator's pod complies with Kubernetes' `restricted` pod security standard, rule by rule."""

from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from typing import Any

import pytest

from tests.unit.helm.chart import Chart, Release

Fields = Mapping[str, Any]
VOLUME_TYPES = {
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "persistentVolumeClaim",
    "projected",
    "secret",
}


def containers(pod: Fields) -> list[Fields]:
    return [*pod.get("initContainers", []), *pod["containers"], *pod.get("ephemeralContainers", [])]


def violations(pod: Fields) -> Iterator[str]:
    """Yield each field that `restricted` refuses; nothing for an admitted pod."""
    shared = pod.get("securityContext", {})
    yield from (field for field in ("hostNetwork", "hostPID", "hostIPC") if pod.get(field))
    yield from (
        f"volume {volume['name']}" for volume in pod.get("volumes", []) if set(volume) - {"name"} - VOLUME_TYPES
    )
    for container in containers(pod):
        own = container.get("securityContext", {})
        in_force = {**shared, **own}
        capabilities = own.get("capabilities", {})
        if own.get("privileged"):
            yield "privileged"
        if own.get("allowPrivilegeEscalation") is not False:
            yield "allowPrivilegeEscalation"
        if "ALL" not in capabilities.get("drop", []) or set(capabilities.get("add", [])) - {"NET_BIND_SERVICE"}:
            yield "capabilities"
        if in_force.get("runAsNonRoot") is not True or in_force.get("runAsUser") == 0:
            yield "runAsNonRoot"
        if in_force.get("seccompProfile", {}).get("type") not in {"RuntimeDefault", "Localhost"}:
            yield "seccompProfile"
        if any(port.get("hostPort") for port in container.get("ports", [])):
            yield "hostPort"


def operators_pod(release: Release) -> dict[str, Any]:
    return deepcopy(release.operator()["spec"]["template"]["spec"])


@pytest.mark.parametrize("values", [{}, {"runAsUser": 1000}, {"runAsUser": None}])
def test_restricted_standard_admits_the_operator(chart: Chart, values: Fields) -> None:
    assert list(violations(operators_pod(chart.render(values)))) == []


@pytest.mark.parametrize(
    ("field", "weaken"),
    [
        ("hostNetwork", lambda pod: pod.update(hostNetwork=True)),
        ("volume host", lambda pod: pod.update(volumes=[{"name": "host", "hostPath": {"path": "/"}}])),
        ("runAsNonRoot", lambda pod: pod["securityContext"].update(runAsUser=0)),
        ("seccompProfile", lambda pod: pod["securityContext"].pop("seccompProfile")),
        ("capabilities", lambda pod: pod["containers"][0]["securityContext"].pop("capabilities")),
        ("allowPrivilegeEscalation", lambda pod: pod["containers"][0]["securityContext"].clear()),
    ],
)
def test_pod_security_check_can_fail(release: Release, field: str, weaken: Callable[[dict[str, Any]], None]) -> None:
    pod = operators_pod(release)
    weaken(pod)
    assert field in set(violations(pod))


def test_pod_is_stricter_than_restricted(release: Release) -> None:
    """Hardening that the standard does not require."""
    pod = operators_pod(release)
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsUser"] == pod["securityContext"]["runAsGroup"] == 65532
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["resources"] == {
        "requests": {"cpu": "100m", "memory": "128Mi", "ephemeral-storage": "64Mi"},
        "limits": {"memory": "1Gi", "ephemeral-storage": "1Gi"},
    }
    token, certificate = pod["volumes"]
    # This container mounts it explicitly, like the kubelet would for all containers.
    assert pod["automountServiceAccountToken"] is False
    assert [next(iter(source)) for source in token["projected"]["sources"]] == [
        "serviceAccountToken",
        "configMap",
        "downwardAPI",
    ]
    assert container["volumeMounts"][0]["mountPath"] == "/var/run/secrets/kubernetes.io/serviceaccount"
    # Of an earlier version of the chart: the operator itself cannot read that Secret.
    earlier = {"secretName": "trainyard-coordinator-tls", "optional": True}
    assert certificate == {"name": "coordinator-tls", "secret": earlier}
    assert pod["enableServiceLinks"] is False
