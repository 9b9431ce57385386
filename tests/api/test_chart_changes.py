"""Releases of the chart that are changed, taken away and made again, by Helm 3 and by Helm 4 on a real API server."""

import json
import os
import shutil
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

EARLIER = """
apiVersion: v1
kind: Secret
metadata:
  name: {{ include "trainyard.fullname" . }}-coordinator-tls
  annotations: {helm.sh/resource-policy: keep}
type: kubernetes.io/tls
data: {tls.crt: eA==, tls.key: eQ==, ca.crt: eg==}
"""
"""The Secret of charts that made the certificate themselves."""


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

    def apply(self, release: str, values: Mapping[str, Any], chart: Path = CHART) -> None:
        words = [f"--set-json={name}={json.dumps(value)}" for name, value in (BASE | dict(values)).items()]
        self.run("upgrade", "--install", release, str(chart), *words)

    def secret(self, release: str) -> dict[str, Any]:
        """The Secret of the operator's certificate; nothing where it is not there."""
        return self.plane.find(self._path(release))

    def certificate(self, release: str) -> dict[str, Any]:
        """What is in it."""
        return dict(self.secret(release).get("data", {}))

    def issue(self, release: str) -> dict[str, Any]:
        """Write into it, as the operator does."""
        secret = self.secret(release)
        assert "data" not in secret
        self.plane.call("PUT", self._path(release), {**secret, "data": {"tls.crt": "eA==", "ca.key": "eQ=="}})
        return self.certificate(release)

    def _path(self, release: str) -> str:
        return f"/api/v1/namespaces/{self.namespace}/secrets/{release}-coordinator-cert"


@pytest.fixture(scope="module", params=["helm", "helm4"])
def helm(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Helm]:
    with running(tmp_path_factory.mktemp("changes") / "state", ["lab"], third_party_crds.crds()) as plane:
        yield Helm(ensure(request.param)[request.param], plane)


@pytest.mark.parametrize(
    ("release", "tls"),
    [
        ("trainyard-secret", {"existingSecret": "trainyard-secret-coordinator-cert"}),
        ("trainyard-another", {"existingSecret": "mine"}),
        ("trainyard-manager", CERT_MANAGER),
    ],
)
def test_certificate_authority_survives_switching_issuer_and_back(
    helm: Helm, release: str, tls: dict[str, Any]
) -> None:
    helm.apply(release, {})
    known = helm.issue(release)
    for wanted in (tls, {}):
        helm.apply(release, {"coordinator": {"tls": wanted}})
        assert helm.certificate(release) == known


def test_upgrades_and_rollbacks_keep_the_certificate(helm: Helm) -> None:
    release = "trainyard-upgraded"
    helm.apply(release, {})
    known = helm.issue(release)
    helm.apply(release, {"commonLabels": {"team": "ml"}})
    assert helm.certificate(release) == known
    assert helm.secret(release)["metadata"]["labels"]["team"] == "ml"
    helm.run("rollback", release, "1")
    assert helm.certificate(release) == known


def test_upgrade_from_a_chart_with_certificate_keeps_it(helm: Helm, tmp_path: Path) -> None:
    release, earlier = "trainyard-earlier", tmp_path / "trainyard"
    shutil.copytree(CHART, earlier)
    (earlier / "templates" / "earlier.yaml").write_text(EARLIER)
    helm.apply(release, {}, earlier)
    path = f"/api/v1/namespaces/{helm.namespace}/secrets/{release}-coordinator-tls"
    known = helm.plane.call("GET", path)["data"]
    helm.apply(release, {})
    assert helm.plane.find(path)["data"] == known
    helm.run("rollback", release, "1")
    assert helm.plane.find(path)["data"] == known


def test_cert_manager_secret_does_not_block_switching_back(helm: Helm) -> None:
    release = "trainyard-managed"
    helm.apply(release, {"coordinator": {"tls": CERT_MANAGER}})
    place = f"/apis/cert-manager.io/v1/namespaces/{helm.namespace}/certificates/{release}-coordinator"
    made = {"metadata": {"name": helm.plane.call("GET", place)["spec"]["secretName"]}, "type": "Opaque"}
    helm.plane.call("POST", f"/api/v1/namespaces/{helm.namespace}/secrets", made)
    helm.apply(release, {})
    assert helm.secret(release)


def test_the_certificate_that_workers_know_outlives_an_uninstall(helm: Helm) -> None:
    release = "trainyard-gone"
    helm.apply(release, {})
    known = helm.issue(release)
    helm.run("uninstall", release)
    assert helm.certificate(release) == known
    helm.apply(release, {})
    assert helm.certificate(release) == known


def test_release_name_may_contain_a_dot(helm: Helm) -> None:
    helm.apply("my.trainyard", {})
    assert helm.secret("my-trainyard")
