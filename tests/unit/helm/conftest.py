import pytest

from dev.localcluster.tools import ensure
from tests.unit.helm.chart import Chart, Release


@pytest.fixture(scope="session")
def chart() -> Chart:
    return Chart(helm=ensure("helm")["helm"])


@pytest.fixture(scope="session")
def release(chart: Chart) -> Release:
    """The chart with its default values."""
    return chart.render()
