"""One control plane for all tests of this folder, and the chart's permissions on it."""

from collections.abc import Iterator

import pytest

from dev.localcluster.tools import ensure
from tests.api.kueue import WAIT_FOR_PODS, Crew, Queues, crds, kueue
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


@pytest.fixture(scope="session")
def queued(tmp_path_factory: pytest.TempPathFactory, chart: Chart) -> Iterator[Plane]:
    """A control plane with Kueue's CRDs."""
    with running(tmp_path_factory.mktemp("queued") / "state", ["lab"], crds()) as made:
        made.grant_chart(chart, {"kueue": {"enabled": True}})
        yield made


@pytest.fixture(scope="session")
def queues(queued: Plane) -> Iterator[Queues]:
    """Kueue itself, with a flavor and two classes of priority."""
    with kueue(queued, waitForPodsReady=WAIT_FOR_PODS):
        made = Queues(queued, "lab")
        taint = {"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}
        made.flavor(nodeLabels={"pool": "gpu"}, tolerations=[taint])
        made.priority("low", 10)
        made.priority("high", 1000)
        yield made


@pytest.fixture(scope="module")
def crew(queued: Plane) -> Iterator[Crew]:
    made = Crew(queued)
    yield made
    made.leaves()


@pytest.fixture
def queue_lab(queued: Plane) -> Iterator[Namespace]:
    """A namespace beside Kueue, whose jobs go with the test."""
    with Namespace(queued, "lab") as namespace:
        yield namespace
        for job in namespace.jobs():
            namespace.remove(job["metadata"]["name"])
