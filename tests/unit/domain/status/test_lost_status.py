"""A status that was lost, or restored from a backup: pods and agents know better which attempt it is. One agent alone does not."""

from dataclasses import replace

import pytest

from tests.support.jobs import Scene, job
from tests.unit.domain.recovering import RUNS, act, after, made_in
from trainyard.api.agent_protocol import AgentState
from trainyard.api.internal_status import Group, Rendezvous, Replacement
from trainyard.api.reasons import Reason
from trainyard.api.status import Phase
from trainyard.domain.state.worker_views import AgentView


def at(scene: Scene, *attempts: int | None) -> Scene:
    """The agents of workers 0, 1, … say that they are at these attempts; None: it has yet to call."""
    newest = {pod.index: pod.uid for pod in scene.pods}
    agents = {newest[i]: AgentView(attempt, AgentState.RUNNING) for i, attempt in enumerate(attempts) if attempt}
    return replace(scene, agents=agents)


def test_agents_know_the_attempt_after_status_loss() -> None:
    pods = (*(pod for pod in RUNS.pods if pod.index != 1), job(3).running(4).pods[1])
    lost = at(replace(job(3), pods=pods, has_service=True), 7, 7, 7)
    adopted = after(lost).status
    assert (adopted.attempt, adopted.internal.launched_attempt) == (7, 6)
    assert adopted.internal.group == Group(
        created_in_attempt=1, size=3, replacements=[Replacement(worker=1, attempt=4)]
    )
    assert adopted.internal.rendezvous == Rendezvous(attempt=7, address="10.0.0.0")
    goes_on = act(replace(lost, status=adopted))
    assert (goes_on.actions, goes_on.status.phase) == ([], Phase.RUNNING)


@pytest.mark.parametrize(
    ("scene", "attempt"),
    [
        pytest.param(at(RUNS, 7, 7, 7), 7, id="all say so"),
        pytest.param(at(RUNS, 7, 6, 7), 7, id="all say so, and one has yet to hear of the last"),
        pytest.param(at(RUNS, 1, 7, 1), 1, id="one says so"),
        pytest.param(at(RUNS, 7, 7, 1), 1, id="all but one say so"),
        pytest.param(at(RUNS, 7, 7, None), 1, id="one has yet to call"),
        pytest.param(at(job(3).created(), None, 7, None), 1, id="no other runs yet"),
        pytest.param(at(RUNS.gone(2), 7, 7), 2, id="the pod of another is gone"),
        pytest.param(at(RUNS.succeeded(2), 7, 7, None), 7, id="one has done its work"),
        pytest.param(at(RUNS, *[10**11] * 3), 1, id="absurd"),
    ],
)
def test_unstored_attempt_needs_unanimous_agents(scene: Scene, attempt: int) -> None:
    decided = act(scene)
    assert decided.status.attempt == attempt
    event_reasons = [event.reason for event in decided.events]
    assert (Reason.ATTEMPT_ADOPTED in event_reasons) is (attempt == 7)


def test_single_agent_does_not_change_attempt() -> None:
    later = at(RUNS, 1, 900_000_000, 1)
    assert act(later) == act(at(RUNS, 1, 1, 1))


def test_replacement_of_the_adopted_attempt_stays() -> None:
    """Its pod is the only trace of the attempt that the lost status had."""
    pods = (*(pod for pod in RUNS.pods if pod.index != 1), job(3).running(4).pods[1])
    adopted = after(replace(job(3), pods=pods, has_service=True)).status
    assert (adopted.attempt, adopted.internal.group) == (
        4,
        Group(created_in_attempt=1, size=3, replacements=[Replacement(worker=1, attempt=4)]),
    )


@pytest.mark.parametrize("ending", [RUNS.deleted(1), RUNS.failed(1)], ids=["terminating", "exited"])
def test_replacement_beside_its_ending_pod_is_adopted(ending: Scene) -> None:
    lost = replace(job(3), pods=(*ending.pods, job(3).running(4).pods[1]), has_service=True)
    assert made_in(after(lost)) == [1, 4, 1]


def test_pods_of_one_attempt_have_no_rendezvous() -> None:
    lost = replace(job(3), pods=job(3).running(4).pods, has_service=True)
    adopted = after(lost).status
    assert (adopted.attempt, adopted.internal.group, adopted.internal.rendezvous) == (4, None, None)


def test_agent_at_later_attempt_gets_new_pod() -> None:
    assert made_in(after(at(RUNS, 1, 7, 1).reported_failed(0))) == [1, 2, 1]


@pytest.mark.parametrize(("attempt", "adopted"), [(999_999_999, 999_999_999), (1_000_000_000, 1)])
def test_implausible_attempts_are_not_adopted(attempt: int, adopted: int) -> None:
    assert act(at(RUNS, attempt, attempt, attempt)).status.attempt == adopted


def test_pods_of_stored_attempts_are_not_forged() -> None:
    """Worker 1 has an earlier pod that is yet to be deleted."""
    ending = RUNS.failed(2).with_status(attempt=3)
    pods = (*ending.pods, job(3).running(3).pods[1], job(3).running(4).pods[2])
    assert made_in(after(replace(ending, pods=pods))) == [1, 3, 4]


FORGED = (
    pytest.param(0, 999, id="beside a running worker"),
    pytest.param(3, 999, id="beyond the group"),
)


@pytest.mark.parametrize(("index", "attempt"), FORGED)
def test_forged_pod_does_not_change_the_attempt(index: int, attempt: int) -> None:
    forged = job(index + 1).running(attempt).pods[index]
    forged = replace(forged, ip="10.6.6.6")
    for pods in ((*RUNS.pods, forged), (forged, *RUNS.pods)):
        decided = act(replace(RUNS, pods=pods))
        assert decided.status.attempt == RUNS.status.attempt
        assert Reason.ATTEMPT_ADOPTED not in {event.reason for event in decided.events}
        assert "10.6.6.6" not in str(decided.status)


@pytest.mark.parametrize(("index", "attempt"), FORGED)
def test_forged_pod_completes_no_job(index: int, attempt: int) -> None:
    forged = job(index + 1).running(attempt).succeeded(index).pods[index]
    assert act(replace(RUNS, pods=(*RUNS.pods, forged))).status.phase is Phase.RUNNING
