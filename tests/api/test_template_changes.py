"""Edits around a suspension that the operator does not see: no group has two templates, and the status claims none that is not there."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.api.nodes import Namespace
from tests.api.plane import Plane
from tests.api.process import Operator, operator
from tests.support.polling import until

IMAGE = "example.com/trainer:2"
TEMPLATE = {"spec": {"containers": [{"name": "main", "image": IMAGE}]}}


@pytest.fixture
def running(plane: Plane, granted: None, lab: Namespace) -> Iterator[tuple[Operator, Namespace]]:
    """An operator, and a job of six workers that run."""
    with operator(plane, "editing") as op:
        lab.submit("edited", replicas=6)
        lab.until_phase("Running", "edited")
        yield op, lab
        assert not op.bugs()
    lab.remove("edited")


def edit(lab: Namespace, **fields: Any) -> None:
    """Suspend the job, change it and resume it, in three writes without a pause."""
    lab.change("edited", lifecycle={"suspend": True})
    lab.change("edited", **fields)
    lab.change("edited", lifecycle={"suspend": False})


def images(lab: Namespace) -> list[str]:
    return [pod["spec"]["containers"][0]["image"] for pod in lab.pods("edited").values()]


def until_replaced(lab: Namespace) -> None:
    """Wait for the new group. While the job runs with the new generation, no pod has the earlier template."""

    def replaced() -> bool:
        job, found = lab.job("edited"), images(lab)
        status, current = job["status"], job["metadata"]["generation"]
        if status["phase"] != "Running" or status["observedGeneration"] != current:
            return False
        assert set(found) == {IMAGE}
        return len(found) == 6

    until(replaced, 30, "a group with the new template")


def assert_uncharged(lab: Namespace) -> None:
    status = lab.status("edited")
    assert (status["restartCount"], status["restarts"]["failures"], status["restarts"]["disruptions"]) == (0, 0, 0)
    assert "lastFailure" not in status


def test_three_writes_without_a_pause_replace_the_group(running: tuple[Operator, Namespace]) -> None:
    _, lab = running
    for _ in range(3):
        edit(lab, template=TEMPLATE)
        edit(lab, template={"spec": {"containers": [{"name": "main", "image": "example.com/trainer:3"}]}})
    edit(lab, template=TEMPLATE)
    until_replaced(lab)
    assert_uncharged(lab)


def test_edit_in_absence_of_operator_replaces_the_group(plane: Plane, running: tuple[Operator, Namespace]) -> None:
    op, lab = running
    op.end()
    edit(lab, template=TEMPLATE)
    with operator(plane, "back", leader_election="false"):
        until_replaced(lab)
        assert_uncharged(lab)
        assert lab.events("TemplateChanged", "edited")
        assert lab.status("edited")["attempt"] == 2


def test_edit_while_pods_are_made_leaves_one_template(running: tuple[Operator, Namespace]) -> None:
    _, lab = running
    lab.change("edited", lifecycle={"suspend": True})
    until(lambda: not lab.pods("edited"), 30, "no pods")
    lab.change("edited", lifecycle={"suspend": False})
    until(lambda: lab.pods("edited"), 30, "the first pod")
    edit(lab, template=TEMPLATE)
    until_replaced(lab)
    assert_uncharged(lab)


def test_edited_processes_reach_all_pods_when_unseen(plane: Plane, running: tuple[Operator, Namespace]) -> None:
    op, lab = running
    op.end()
    edit(lab, processesPerReplica=2)
    with operator(plane, "back", leader_election="false"):
        until(lambda: lab.status("edited")["attempt"] == 2, 30, "a new attempt")
        lab.until_phase("Running", "edited")
        variables = [
            {each["name"]: each["value"] for each in pod["spec"]["containers"][0]["env"]}
            for pod in lab.pods("edited").values()
        ]
        assert [each["TRAINYARD_PROCESSES_PER_REPLICA"] for each in variables] == ["2"] * 6


def test_unseen_suspension_without_an_edit_changes_nothing(plane: Plane, running: tuple[Operator, Namespace]) -> None:
    op, lab = running
    before = set(lab.pods("edited"))
    op.end()
    edit(lab, recovery={"maxRestarts": 7})
    with operator(plane, "back", leader_election="false"):
        current = lab.job("edited")["metadata"]["generation"]
        until(lambda: lab.status("edited")["observedGeneration"] == current, 30, "the edit to be seen")
        assert (set(lab.pods("edited")), lab.status("edited")["attempt"]) == (before, 1)
