"""Which attempts compare nodes before they train: those with a new pod, and those after a failure of a node."""

from datetime import timedelta
from typing import Any

import pytest

from tests.support.jobs import NOW, SUPERVISED, job
from trainyard.api.internal_status import Group, Replacement
from trainyard.api.status import LastFailure, SuspectNode
from trainyard.frameworks.environment import common_variables, restart_environment
from trainyard.frameworks.preflight import PREFLIGHT, preflight_variables
from trainyard.frameworks.worker_spec import Worker

QUICK = {"preflight": "quick"}
KEPT = Group(created_in_attempt=1)
LAST = LastFailure(time=NOW, attempt=2, pod="w", pod_uid="u", reason="Error", node="node-1")
SUSPECT = SuspectNode(name="node-1", until=NOW + timedelta(days=1))


def replaced(attempt: int) -> Group:
    """Return a group of which worker 2 got its pod for this attempt."""
    return KEPT.evolve(replacements=[Replacement(worker=2, attempt=attempt)])


def worker(health: dict[str, str] | None = QUICK, **status: Any) -> Worker:
    made = job(4, template=SUPERVISED, **({"health": health} if health else {}))
    return Worker(made.with_status(attempt=3, **status).job, 1, 3, 4)


@pytest.mark.parametrize(
    ("status", "compares"),
    [
        pytest.param({}, True, id="all pods are new"),
        pytest.param({"group": KEPT}, False, id="all pods are kept"),
        pytest.param({"group": Group(created_in_attempt=3)}, True, id="the group was created for this attempt"),
        pytest.param({"group": replaced(3)}, True, id="one pod is new"),
        pytest.param({"group": replaced(2)}, False, id="one pod was new in the last attempt"),
        pytest.param({"group": KEPT, "last_failure": LAST}, False, id="a failure of the program"),
        pytest.param(
            {"group": KEPT, "last_failure": LAST, "suspect_nodes": [SUSPECT]}, True, id="a failure of its node"
        ),
        pytest.param(
            {"group": KEPT, "last_failure": LAST.evolve(node="node-2"), "suspect_nodes": [SUSPECT]},
            False,
            id="a failure on another node",
        ),
    ],
)
def test_nodes_that_may_be_new_are_compared(status: dict[str, Any], compares: bool) -> None:  # noqa: FBT001 - a parameter
    assert preflight_variables(worker(**status)) == ({PREFLIGHT: "quick"} if compares else {})


@pytest.mark.parametrize("health", [None, {}, {"preflight": "none"}])
def test_no_nodes_are_compared_by_default(health: dict[str, str] | None) -> None:
    assert preflight_variables(worker(health)) == {}


def test_all_members_of_the_group_take_part() -> None:
    made = worker({"preflight": "full"})
    assert {"name": PREFLIGHT, "value": "full"} in common_variables(made)
    assert restart_environment(made)[PREFLIGHT] == "full"
    assert restart_environment(worker(group=KEPT))[PREFLIGHT] == ""
