"""One real cluster for all tests of this folder, with the operator installed as the README says."""

import os
import secrets
from collections.abc import Iterator

import pytest

from dev.demo import install, target
from dev.demo.commands import Cluster, DemoError, capture, show
from dev.localcluster.paths import from_environment
from tests.cluster import invariants, recipe_jobs
from tests.cluster.kube import Kube
from tests.support import permission_audit


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Three nodes with eight simulated GPUs each, and the operator."""
    made = target.local()
    install.install(made)
    yield made
    permission_audit.record(from_environment().audit)
    if not os.environ.get("TRAINYARD_KEEP_CLUSTER"):
        show([*target.python("dev.localcluster"), "down"])


@pytest.fixture(scope="session")
def kinds(cluster: Cluster) -> str:
    """All kinds that can remain in a namespace."""
    return invariants.kinds(cluster)


@pytest.fixture(scope="module")
def recipes(cluster: Cluster) -> Iterator[Kube]:
    """A namespace with the programs and the volume of `examples/recipes`."""
    with recipe_jobs.namespace(cluster) as kube:
        yield kube


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
