"""One control plane for each process that runs tests, with the CRD and the permissions that the chart grants to the
operator.
"""

import asyncio
import json
import time
import urllib.error
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml

from dev.localcluster import tools
from dev.localcluster.lock import exclusive
from tests.chaos.history import LAB
from tests.support.control_plane import ControlPlane, RefusedError, running
from tests.unit.helm.chart import ROOT, Chart, Release

Json = dict[str, Any]
RBAC = "/apis/rbac.authorization.k8s.io/v1"
SERVICE_ACCOUNT = f"/api/v1/namespaces/{LAB}/serviceaccounts/default"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "chaos: plays against a real API server (its programs are built once; no root)")


@pytest.fixture(scope="session")
def runner() -> Iterator[asyncio.Runner]:
    """One event loop for all stories: what a story leaves to be closed is closed during the next one."""
    with asyncio.Runner() as made:
        yield made
        made.run(asyncio.sleep(0.5))


@pytest.fixture(scope="session")
def release() -> Release:
    return Chart(tools.ensure("helm")["helm"]).render()


@pytest.fixture(scope="session")
def plane(tmp_path_factory: pytest.TempPathFactory, release: Release) -> Iterator[ControlPlane]:
    crds = [yaml.load(path.read_text(), Loader=yaml.CSafeLoader) for path in sorted((ROOT / "crds").glob("*.yaml"))]
    with running(tmp_path_factory.mktemp("plane") / "state", crds) as made:
        for name in (LAB, "trainyard-system"):
            made.call("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        grant(made, release)
        _await_service_account(made)
        yield made


def grant(plane: ControlPlane, release: Release) -> None:
    """What `helm install` gives to the operator's account."""
    for kind in ("ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"):
        for manifest in release.all(kind):
            namespace = manifest["metadata"].get("namespace")
            place = f"namespaces/{namespace}/" if namespace else ""
            plane.call("POST", f"{RBAC}/{place}{kind.lower()}s", dict(manifest))


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Callable[..., Json]:
    """Makes something once for all processes that run tests side by side, and keeps it."""
    base = tmp_path_factory.getbasetemp()
    folder = base.parent if hasattr(request.config, "workerinput") else base

    def get(name: str, make: Callable[[], Json]) -> Json:
        kept = folder / f"once-{name}.json"
        with exclusive(folder / f"once-{name}.lock", patience=300, busy=f"{name} was not made in time"):
            if not kept.exists():
                kept.write_text(json.dumps(make()))
        return dict(json.loads(kept.read_text()))

    return get


def _await_service_account(plane: ControlPlane) -> None:
    # Pods are refused before it is there.
    deadline = time.monotonic() + 60
    while True:
        try:
            plane.call("GET", SERVICE_ACCOUNT)
        except (RefusedError, urllib.error.URLError):
            assert time.monotonic() < deadline, "the controllers do not make the service account"
            time.sleep(0.1)
        else:
            return
