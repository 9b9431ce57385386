"""What is counted of jobs: each end of an attempt once, by its cause."""

import pytest
from prometheus_client import CollectorRegistry

from tests.support.jobs import NOW, Scene, job
from trainyard.api.status import MOST, Restarts
from trainyard.controller.metrics import JobMetrics
from trainyard.domain.plan import plan

ALL = job(3).running()


@pytest.mark.parametrize(
    ("scene", "cause"),
    [
        (ALL.failed(1), "failure"),
        (ALL.failed(1, exit_code=91), "hang"),
        (ALL.deleted(1), "disruption"),
        (ALL.wishing(replicas=5), "resize"),
    ],
)
def test_each_restart_has_one_cause(scene: Scene, cause: str) -> None:
    registry = CollectorRegistry()
    JobMetrics(registry).moved(scene.job, plan(scene.snapshot, NOW).status)
    causes = ("failure", "hang", "disruption", "resize")
    counted = {each: registry.get_sample_value("trainyard_restarts_total", {"cause": each}) for each in causes}
    assert counted == {each: float(each == cause) for each in causes}


def test_numbers_beyond_all_that_can_be_do_no_harm() -> None:
    scene = ALL.with_status(restarts=Restarts(failures=MOST)).failed(1, exit_code=91)
    JobMetrics(CollectorRegistry()).moved(scene.job, plan(scene.snapshot, NOW).status)
