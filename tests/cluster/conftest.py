"""One real cluster for all tests of this folder, with the operator installed as the README says.

Several pytest processes may share it (`-n 2 --dist loadgroup -m 'not exclusive'`): the first one starts the cluster and
installs the operator, and the process that started them takes the cluster down.
"""

import os
import secrets
from collections.abc import Iterator

import pytest

from dev.demo import install, target
from dev.demo.commands import Cluster, DemoError, capture, show
from dev.localcluster import network
from dev.localcluster.lock import exclusive
from dev.localcluster.paths import from_environment
from tests.cluster import invariants
from tests.cluster.kube import Kube
from tests.support import permission_audit

INSTALL_SECONDS = 1800
"""Seconds that a test process waits for the one that builds, starts the cluster and installs the operator."""


@pytest.fixture(scope="session")
def cluster(worker_id: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three nodes with eight simulated GPUs each, and the operator."""
    own = tmp_path_factory.getbasetemp()
    shared = own if worker_id == "master" else own.parent
    installed = shared / "installed"
    with exclusive(
        shared / "install.lock", patience=INSTALL_SECONDS, busy="no test process has installed the operator"
    ):
        made = target.local()
        if not installed.exists():
            install.install(made)
            installed.touch()
    yield made
    if worker_id == "master":
        take_down()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Take the cluster down, in the process that started all others."""
    if session.config.getoption("numprocesses", None) and not hasattr(session.config, "workerinput"):
        take_down()


def take_down() -> None:
    """Record which permissions were used, and stop the cluster, unless it is to be kept."""
    paths = from_environment()
    if not os.environ.get("TRAINYARD_KEEP_CLUSTER") and network.owner() == str(paths.state):
        permission_audit.record(paths.audit)
        show([*target.python("dev.localcluster"), "down"])


@pytest.fixture(scope="session")
def kinds(cluster: Cluster) -> str:
    """All kinds that can remain in a namespace."""
    return invariants.kinds(cluster)


@pytest.fixture
def kube(cluster: Cluster, kinds: str, request: pytest.FixtureRequest) -> Iterator[Kube]:
    """A namespace of its own for each test. The invariants are checked at its end; a failed test prints the operator's log."""
    name, failed, reconciles = f"t-{secrets.token_hex(4)}", request.session.testsfailed, invariants.Reconciles(cluster)
    cluster.kube("create", "namespace", name)
    made = Kube(cluster, name)
    yield made
    broken = request.session.testsfailed > failed
    wrong = "" if broken else reconciles.too_many() or invariants.left_over(made, kinds)
    if broken or wrong:
        print(logs_of(cluster, name))  # noqa: T201 - pytest shows it below a failed test
    cluster.kube("delete", "namespace", name, "--ignore-not-found", "--wait=false")
    assert not wrong, wrong


def logs_of(cluster: Cluster, namespace: str) -> str:
    """Return the operators' log lines about a namespace. An operator that is starting has none."""
    command = cluster.kubectl_command("--namespace", install.NAMESPACE, "logs", *install.OPERATORS, "--tail=400")
    try:
        output = capture(command, environment=cluster.environment)
    except DemoError as error:
        return f"the operator's log cannot be read: {error}"
    return "\n".join(["the operator's log:", *(line for line in output.splitlines() if f"{namespace}/" in line)])
