"""The whole cluster goes back to an older state, as after `etcdctl snapshot restore`: versions that clients have seen never existed."""

import pytest

from tests.api.nodes import Namespace
from tests.api.plane import running
from tests.api.process import operator
from tests.unit.helm.chart import Chart


def test_operator_restarts_after_its_cluster_was_restored(
    tmp_path_factory: pytest.TempPathFactory, chart: Chart
) -> None:
    with running(tmp_path_factory.mktemp("restored") / "state", ["lab"]) as plane:
        plane.grant_chart(chart)
        # Its Lease outlasts the start of an API server on a busy machine: to lose it would be another reason to end.
        with operator(plane, "one", lease_duration_seconds="90") as one:
            with Namespace(plane, "lab") as lab:
                lab.submit("kept")
                lab.until_phase("Running", "kept")
            plane.back_up()
            for number in range(300):
                manifest = {"metadata": {"name": f"version-{number}"}}
                plane.call("POST", "/api/v1/namespaces/lab/configmaps", manifest)
            with Namespace(plane, "lab") as lab:
                lab.submit("lost")
                lab.until_phase("Running", "lost")
            plane.restore()
            assert one.ends(300) == 1
            assert "seems to have been restored from a backup" in one.messages()[-1]
            assert not one.bugs()
        with operator(plane, "two", leader_election="false"), Namespace(plane, "lab") as lab:
            assert not lab.job("lost")
            lab.submit("new")
            lab.until_phase("Running", "new")
            assert lab.status("kept")["attempt"] == 1
            assert lab.status("kept")["phase"] == "Running"
