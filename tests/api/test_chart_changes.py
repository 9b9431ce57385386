"""Releases of the chart that are changed, taken away and made again, by Helm 3 and by Helm 4 on a real API server."""

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dev.localcluster.tools import ensure
from tests.api.plane import Plane, running
from tests.support import third_party_crds
from tests.support.control_plane import ADMIN
from tests.unit.helm.chart import CHART

BASE = {"crds": {"enabled": False}}
"""The server has the CRD already."""
CERT_MANAGER = {"certManager": {"enabled": True, "issuerRef": {"name": "ca"}}}


@dataclass(frozen=True)
class Helm:
    """One as an administrator uses it, in a namespace."""

    command: Path
    plane: Plane
    namespace: str = "lab"

    def run(self, *words: str) -> None:
        subprocess.run(
            [self.command, *words, "--namespace", self.namespace],
            env={**os.environ, "KUBECONFIG": str(self.plane.kubeconfig(ADMIN))},
            check=True,
            stdout=subprocess.DEVNULL,
        )

    def apply(self, release: str, values: Mapping[str, Any]) -> None:
        words = [f"--set-json={name}={json.dumps(value)}" for name, value in (BASE | dict(values)).items()]
        self.run("upgrade", "--install", release, str(CHART), *words)

    def certificate(self, release: str) -> dict[str, Any]:
        """What is in the chart's own Secret; nothing where it is not there."""
        path = f"/api/v1/namespaces/{self.namespace}/secrets/{release}-coordinator-tls"
        return dict(self.plane.find(path).get("data", {}))


@pytest.fixture(scope="module", params=["helm", "helm4"])
def helm(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Helm]:
    with running(tmp_path_factory.mktemp("changes") / "state", ["lab"], third_party_crds.crds()) as plane:
        yield Helm(ensure(request.param)[request.param], plane)


@pytest.mark.parametrize(
    ("release", "tls"),
    [
        ("trainyard-secret", {"existingSecret": "trainyard-secret-coordinator-tls"}),
        ("trainyard-another", {"existingSecret": "mine"}),
        ("trainyard-manager", CERT_MANAGER),
    ],
)
def test_certificate_authority_survives_switching_issuer_and_back(
    helm: Helm, release: str, tls: dict[str, Any]
) -> None:
    helm.apply(release, {})
    known = helm.certificate(release)
    assert known
    for wanted in (tls, {}):
        helm.apply(release, {"coordinator": {"tls": wanted}})
        assert helm.certificate(release) == known


def test_cert_manager_secret_does_not_block_switching_back(helm: Helm) -> None:
    release = "trainyard-managed"
    helm.apply(release, {"coordinator": {"tls": CERT_MANAGER}})
    place = f"/apis/cert-manager.io/v1/namespaces/{helm.namespace}/certificates/{release}-coordinator"
    made = {"metadata": {"name": helm.plane.call("GET", place)["spec"]["secretName"]}, "type": "Opaque"}
    helm.plane.call("POST", f"/api/v1/namespaces/{helm.namespace}/secrets", made)
    helm.apply(release, {})
    assert helm.certificate(release)


def test_the_certificate_that_workers_know_outlives_an_uninstall(helm: Helm) -> None:
    release = "trainyard-gone"
    helm.apply(release, {})
    known = helm.certificate(release)
    helm.run("uninstall", release)
    assert helm.certificate(release) == known
    helm.apply(release, {})
    assert helm.certificate(release) == known


def test_release_name_may_contain_a_dot(helm: Helm) -> None:
    helm.apply("my.trainyard", {})
    assert helm.certificate("my-trainyard")
