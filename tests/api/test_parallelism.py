"""Sizes that `spec.parallelism` does not divide: what the API server refuses, and what the operator does where it cannot."""

import pytest

from tests.api.nodes import Namespace
from tests.api.plane import Plane
from tests.api.process import operator
from tests.support.control_plane import RefusedError
from tests.support.polling import until

PAIRS = {"parallelism": {"tensor": 2}}


def test_the_api_server_refuses_what_it_can_count(lab: Namespace) -> None:
    with pytest.raises(RefusedError, match=r"422.*must be a multiple of"):
        lab.submit("odd", replicas=3, processesPerReplica=1, **PAIRS)
    lab.submit("pairs", replicas=2, processesPerReplica=1, **PAIRS)
    with pytest.raises(RefusedError, match="must be a multiple of"):
        lab.scale("pairs", 3)
    lab.scale("pairs", 4)
    with pytest.raises(RefusedError, match="only while the job is suspended"):
        lab.change("pairs", parallelism=None)
    lab.change("pairs", parallelism={"pipeline": 2}, lifecycle={"suspend": True})
    lab.remove("pairs")


@pytest.mark.usefixtures("granted")
def test_size_not_divisible_by_parallelism_is_not_applied(plane: Plane, lab: Namespace) -> None:
    with operator(plane, "counting") as op:
        lab.submit("auto", replicas=2, **PAIRS)
        lab.until_phase("Running", "auto")
        before = set(lab.pods("auto"))
        lab.scale("auto", 3)
        until(lambda: lab.condition("Stalled", "auto").get("reason") == "InvalidSpec", 20, "the condition")
        assert (set(lab.pods("auto")), lab.status("auto")["phase"]) == (before, "Running")
        lab.scale("auto", 4)
        until(lambda: lab.status("auto")["attempt"] == 2, 20, "the new size")
        lab.until_phase("Running", "auto")
        assert (len(lab.pods("auto")), lab.condition("Stalled", "auto")["status"]) == (4, "False")
        assert not op.bugs()
    lab.remove("auto")
