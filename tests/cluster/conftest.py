"""One real cluster for all tests of this folder, with the operator installed as the README says."""

import os
import secrets
from collections.abc import Iterator

import pytest

from demo import install, target
from demo.commands import Cluster, capture, show
from tests.cluster.kube import Kube

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Three nodes with eight pretend GPUs each, and the operator."""
    made = target.local()
    install.install(made)
    yield made
    if not os.environ.get("TRAINYARD_KEEP_CLUSTER"):
        show([*target.python("localcluster"), "down"])


@pytest.fixture
def kube(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[Kube]:
    """A namespace of its own for each test; what the operator said of it is shown when the test fails."""
    name = f"t-{secrets.token_hex(4)}"
    cluster.kube("create", "namespace", name)
    yield Kube(cluster, name)
    if request.session.testsfailed:
        operator = capture(
            cluster.kubectl_command("--namespace", install.NAMESPACE, "logs", *install.OPERATORS, "--tail=400"),
            environment=cluster.environment,
        )
        mine = [line for line in operator.splitlines() if f"{name}/" in line]
        print("\n".join(["the operator's log:", *mine]))  # noqa: T201 - pytest shows it below a failed test
    cluster.kube("delete", "namespace", name, "--ignore-not-found", "--wait=false")
