"""Jobs with a queue where the operator or the cluster has no Kueue: held, with what to do, and no request is wasted."""

import pytest

from tests.api.nodes import Namespace
from tests.api.plane import Plane
from tests.api.process import operator
from tests.support.polling import until
from tests.unit.helm.chart import Chart

QUEUE = {"queue": "team"}


@pytest.mark.usefixtures("granted")
def test_job_with_queue_is_held_without_kueue(plane: Plane, lab: Namespace) -> None:
    with operator(plane, "without-kueue", leader_election="false") as op:
        lab.submit("held", scheduling=QUEUE)
        lab.submit("free")
        lab.until_phase("Running", "free")
        lab.until_phase("Queued", "held")
        assert lab.status("held")["reason"] == "QueueUnavailable"
        until(lambda: lab.events("QueueUnavailable", "held"), 10, "the event")
        assert "kueue.enabled of the chart" in lab.events("QueueUnavailable", "held")[0]
        assert not lab.pods("held")
        assert not [each for each in plane.requests() if "kueue" in each.resource]
        lab.change("held", lifecycle={"suspend": True})
        lab.until_phase("Suspended", "held")
        lab.change("held", scheduling={"queue": None}, lifecycle={"suspend": False})
        lab.until_phase("Running", "held")
        assert not op.bugs()
    lab.remove("held")
    lab.remove("free")


def test_other_jobs_run_before_kueue_is_installed(plane: Plane, lab: Namespace, chart: Chart) -> None:
    plane.grant_chart(chart, {"kueue": {"enabled": True}})
    with operator(plane, "before-kueue", leader_election="false", kueue="true") as op:
        lab.submit("early", scheduling=QUEUE)
        lab.submit("other")
        lab.until_phase("Running", "other")
        lab.until_phase("Queued", "early")
        assert "check that Kueue is installed" in lab.condition("Queued", "early")["message"]
        assert not op.bugs()
    lab.remove("early")
    lab.remove("other")
