"""One control plane for all tests of this folder, and the chart's permissions on it."""

from collections.abc import Iterator

import pytest

from dev.localcluster.tools import ensure
from tests.api.nodes import Namespace
from tests.api.plane import HOME, Plane, running
from tests.unit.helm.chart import Chart


@pytest.fixture(scope="session")
def chart() -> Chart:
    return Chart(ensure("helm")["helm"])


@pytest.fixture(scope="session")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    with running(tmp_path_factory.mktemp("plane") / "state", ["lab", "office"]) as made:
        yield made


@pytest.fixture
def granted(plane: Plane, chart: Chart) -> None:
    plane.grant_chart(chart)


@pytest.fixture(autouse=True)
def no_leader(plane: Plane) -> None:
    """What a test has killed is not waited for by the next."""
    plane.forget(f"/apis/coordination.k8s.io/v1/namespaces/{HOME}/leases/trainyard")


@pytest.fixture
def lab(plane: Plane) -> Iterator[Namespace]:
    with Namespace(plane, "lab") as namespace:
        yield namespace
