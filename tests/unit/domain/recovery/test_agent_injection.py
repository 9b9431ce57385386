"""The agent in workers: where it cannot be, the job goes on without it and says so."""

from dataclasses import replace
from typing import Any

import pytest

from tests.support.jobs import NOW, Scene, because, condition, job, summarize
from trainyard.api.reasons import Reason
from trainyard.api.status import ConditionType as C, Restarts
from trainyard.domain.decisions import Plan
from trainyard.domain.plan import plan
from trainyard.domain.state.termination import Kind

COMMAND: dict[str, Any] = {
    "template": {"spec": {"containers": [{"name": "main", "image": "i", "command": ["python"]}]}}
}
NO_PYTHON: dict[str, Any] = {
    "exit_code": 96,
    "message": "there is no Python 3.9 or newer on the PATH of this image",
    "kind": Kind.AGENT_UNABLE,
}
NO_SHELL = 'failed to create containerd task: exec: "/bin/sh": stat /bin/sh: no such file or directory: unknown'
UNFIT = condition(C.AGENT_INJECTED, holds=False, reason=Reason.NO_PYTHON)


def decided(scene: Scene, *, agent: bool = True) -> Plan:
    return plan(replace(scene.snapshot, agent=agent), NOW)


@pytest.mark.parametrize(
    ("failure", "why"),
    [
        (NO_PYTHON, "there is no Python 3.9 or newer on the PATH of this image"),
        ({"exit_code": 128, "reason": "StartError", "message": NO_SHELL}, "there is no /bin/sh in this image"),
    ],
)
def test_agent_is_disabled_uncounted_in_unsupported_image(failure: dict[str, Any], why: str) -> None:
    scene = job(3, **COMMAND).running()
    after = decided(scene.failed(0, **failure).failed(1, **failure).failed(2, **failure))
    assert (after.status.attempt, after.status.restarts, after.status.last_failure) == (2, Restarts(), None)
    assert summarize(after.status.conditions)[C.AGENT_INJECTED] == because(Reason.NO_PYTHON, holds=False)
    (event,) = after.events
    assert event.type == "Normal"
    assert event.note == f"{why}: trainyard-agent is disabled for this job; restarting all workers as attempt 2"
    assert not scene.with_status(conditions=after.status.conditions).job.wants_agent


@pytest.mark.parametrize(
    ("scene", "agent"),
    [
        pytest.param(job(3, **COMMAND), False, id="the operator has no agent"),
        pytest.param(job(3, **COMMAND).with_conditions(UNFIT), True, id="it was left out already"),
        pytest.param(job(3, recovery={"agent": "none"}, **COMMAND), True, id="it is not wanted"),
        pytest.param(job(3), True, id="there was nothing to wrap"),
    ],
)
def test_same_exit_without_agent_is_a_failure(scene: Scene, *, agent: bool) -> None:
    """Whatever a program reports of itself: it costs one attempt that is not counted, once."""
    after = decided(scene.running().failed(1, **NO_PYTHON), agent=agent)
    assert after.status.restarts.failures == 1


def test_other_ends_with_the_same_code_are_failures() -> None:
    failures: list[dict[str, Any]] = [
        {"exit_code": 96, "message": "my own"},
        {"exit_code": 128, "reason": "StartError", "message": "x"},
    ]
    for failure in failures:
        assert decided(job(3, **COMMAND).running().failed(1, **failure)).status.restarts.failures == 1


@pytest.mark.parametrize(
    ("scene", "agent", "expected"),
    [
        pytest.param(job(3, **COMMAND), True, None, id="as expected: nothing to say"),
        pytest.param(job(3), True, Reason.NO_COMMAND, id="no command"),
        pytest.param(job(3), False, None, id="no command, and no agent either"),
        pytest.param(job(3, recovery={"agent": "none"}), True, None, id="not wanted"),
        pytest.param(job(3, **COMMAND).with_conditions(UNFIT), True, Reason.NO_PYTHON, id="left out"),
        pytest.param(job(3, **COMMAND).with_conditions(UNFIT), False, Reason.AGENT_DISABLED, id="taken away"),
        pytest.param(
            job(3, recovery={"agent": "none"}).with_status(
                conditions=[condition(C.AGENT_INJECTED, holds=False, reason=Reason.NO_COMMAND)]
            ),
            True,
            Reason.AGENT_DISABLED,
            id="not wanted any more",
        ),
    ],
)
def test_the_status_says_where_it_cannot_be(scene: Scene, expected: Reason | None, *, agent: bool) -> None:
    after = decided(scene.running(), agent=agent).status.condition(C.AGENT_INJECTED)
    assert (after and after.reason) == expected
    assert after is None or after.status == "False"


def test_missing_command_is_an_event_once() -> None:
    scene = job(3).running()
    first = decided(scene)
    assert [event.note for event in first.events if event.reason is Reason.NO_COMMAND] == [
        "no agent: set spec.template.spec.containers[0].command"
    ]
    again = decided(scene.with_status(conditions=first.status.conditions))
    assert Reason.NO_COMMAND not in {event.reason for event in again.events}


def test_a_command_given_while_suspended_makes_it_true() -> None:
    scene = job(3, **COMMAND).with_status(
        conditions=[condition(C.AGENT_INJECTED, holds=False, reason=Reason.NO_COMMAND)]
    )
    after = summarize(decided(scene.running()).status.conditions)
    assert after[C.AGENT_INJECTED] == because(Reason.AGENT_INJECTED)


def test_after_a_suspension_it_is_tried_again() -> None:
    """The image may be another one."""
    scene = job(3, **COMMAND).suspended().with_conditions(UNFIT)
    resumed = decided(scene).status
    assert resumed.condition(C.AGENT_INJECTED) is None
    assert scene.with_status(conditions=resumed.conditions).job.wants_agent
