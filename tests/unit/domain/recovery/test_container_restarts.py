"""The restart scope Container: which container restarts, what its worker receives, and what follows if it does not return."""

from dataclasses import replace
from datetime import timedelta

import pytest

from tests.support.jobs import NOW, SUPERVISED, Scene, ago, job
from tests.unit.domain.observing import AT, Json, containers, ended, pod
from tests.unit.domain.recovering import act, after, made_in
from trainyard.api.agent_protocol import AgentState
from trainyard.api.internal_status import Backoff, Group
from trainyard.api.recovery import RESTART_CODE, RestartScope
from trainyard.coordinator.assignments import assignment
from trainyard.domain.plan import plan
from trainyard.domain.state.observe import pod_view
from trainyard.domain.state.termination import Exit
from trainyard.domain.state.worker_views import AgentView, PodView

RULE = {"action": "Restart", "exitCodes": {"operator": "In", "values": [RESTART_CODE]}}
NOT_THIS = {"action": "Restart", "exitCodes": {"operator": "NotIn", "values": [RESTART_CODE]}}
TRIED = Backoff(count=1, scope=RestartScope.PROCESS, scope_attempts=2)


def restartable(replicas: int = 3, **recovery: object) -> Scene:
    runs = job(replicas, template=SUPERVISED, recovery=recovery).running().with_agents()
    return replace(runs, pods=tuple(replace(each, restartable=True) for each in runs.pods))


def restarting(index: int = 1) -> Scene:
    """Worker `index` has received that its container restarts, and confirms it."""
    meets = after(restartable().with_status(backoff=TRIED).reported_failed(index)).with_agents(AgentState.WAITING)
    return meets.disconnected(index, state=AgentState.RESTARTING)


def the_pod(scene: Scene, index: int) -> PodView:
    return next(each for each in scene.pods if each.index == index)


def test_failed_container_restarts_and_all_pods_stay() -> None:
    decided = plan(restartable().with_status(backoff=TRIED).reported_failed(1).snapshot, NOW)
    status = decided.status
    assert status.internal.group == Group(created_in_attempt=1, size=3, restarting_container=1)
    assert (
        status.internal.backoff.scope,
        status.internal.backoff.scope_attempts,
        status.internal.launched_attempt,
    ) == (RestartScope.CONTAINER, 1, 2)
    assert decided.events[0].note.endswith(
        "; restarting the container of worker 1 and the other workers' processes in place as attempt 2, in 2 seconds"
    )


def test_only_it_is_notified_until_the_attempt_starts() -> None:
    meets = after(restartable().with_status(backoff=TRIED).reported_failed(1))
    assert [assignment(each, meets.job).restart for each in meets.pods] == [False, True, False]
    opened = replace(meets.with_agents(AgentState.WAITING), status=meets.status.evolve(backoff=Backoff()))
    begun = replace(opened, status=act(opened).status)
    assert not begun.status.awaiting_rendezvous
    assert [assignment(each, begun.job).restart for each in begun.pods] == [False] * 3


@pytest.mark.parametrize(
    "scene",
    [
        pytest.param(restartable(minRestartScope="Container"), id="asked for"),
        pytest.param(restartable(1, minRestartScope="Container"), id="of one worker"),
    ],
)
def test_it_may_be_the_lowest(scene: Scene) -> None:
    assert after(scene.reported_failed(0)).status.internal.group == Group(
        created_in_attempt=1, size=len(scene.pods), restarting_container=0
    )


@pytest.mark.parametrize(
    ("scene", "made"),
    [
        pytest.param(restartable().pod(1, restartable=False), [1, 2, 1], id="its node could not"),
        pytest.param(restartable().disrupted(2), [1, 1, 2], id="another worker needs a new pod anyway"),
        pytest.param(replace(restartable().failed(1), agents=None), [2, 2, 2], id="no agent is connected"),
    ],
)
def test_impossible_container_restart_escalates(scene: Scene, made: list[int]) -> None:
    ended = scene.reported_failed(1) if scene.agents and not the_pod(scene, 2).disruption else scene
    decided = after(ended.with_status(backoff=TRIED))
    assert decided.status.internal.group is None or decided.status.internal.group.restarting_container is None
    assert made_in(decided) == made


def test_restarting_container_is_awaited_not_missing() -> None:
    scene = replace(restarting(), status=restarting().status.evolve(backoff=Backoff()))
    away = scene.pod(1, running=False, ready=False).disconnected(1, seconds_ago=40, state=AgentState.RESTARTING)
    recent = away.with_status(attempt_start_time=ago(40))
    waits = act(recent)
    assert (waits.actions, waits.status.attempt, waits.status.awaiting_rendezvous, waits.requeue_after) == (
        [],
        2,
        True,
        20.0,
    )


@pytest.mark.parametrize("known", [True, False], ids=["it was reported", "the operator is new"])
def test_container_that_stays_down_gets_a_new_pod(*, known: bool) -> None:
    away = restarting().pod(1, running=False, ready=False)
    if not known:
        away = replace(away, agents={uid: agent for uid, agent in (away.agents or {}).items() if uid != "pod-1-1"})
    late = away.with_status(attempt_start_time=ago(61))
    status = act(late).status
    assert (status.attempt, [status.created_in_attempt(index) for index in range(3)]) == (3, [1, 3, 1])
    assert (status.restarts.failures, status.restarts.disruptions) == (1, 1)
    assert "its container did not restart within 60 seconds" in act(late).events[0].note


def test_node_without_restart_rules_gets_a_new_pod() -> None:
    end = Exit(ago(1), RESTART_CODE, "Error", "the container restarts for attempt 2")
    failed = restarting().pod(1, phase="Failed", running=False, ready=False, ended=True, exit=end)
    status = plan(failed.snapshot, NOW + timedelta(seconds=1)).status
    assert ([status.created_in_attempt(index) for index in range(3)], status.internal.backoff.scope) == (
        [1, 3, 1],
        RestartScope.POD,
    )
    assert (status.restarts.failures, status.restarts.disruptions) == (1, 1)


def test_all_begin_once_it_is_back() -> None:
    scene = replace(restarting(), status=restarting().status.evolve(backoff=Backoff()))
    assert act(scene).status.awaiting_rendezvous
    back = replace(scene, agents={**(scene.agents or {}), "pod-1-1": AgentView(2, AgentState.WAITING, since=NOW)})
    assert not act(back).status.awaiting_rendezvous


def seen(state: Json, phase: str, rules: list[Json]) -> PodView:
    main = {"name": "main", "restartPolicy": "Never", **({"restartPolicyRules": rules} if rules else {})}
    return pod_view(pod({"phase": phase, "containerStatuses": containers(state)}, {"containers": [main]}))


def test_restarting_container_has_not_finished() -> None:
    view = seen(ended(RESTART_CODE), "Running", [RULE])
    assert (view.restartable, view.exit, view.ended, view.running, view.disruption) == (True, None, False, False, None)


@pytest.mark.parametrize(
    ("code", "phase", "rules"),
    [
        pytest.param(RESTART_CODE, "Failed", [RULE], id="its node does not start it"),
        pytest.param(1, "Running", [RULE], id="another code"),
        pytest.param(RESTART_CODE, "Running", [], id="no rule"),
        pytest.param(RESTART_CODE, "Running", [NOT_THIS], id="a rule for all but this one"),
    ],
)
def test_any_other_end_is_one(code: int, phase: str, rules: list[Json]) -> None:
    view = seen(ended(code), phase, rules)
    assert view.exit == Exit(AT, code, "Error", "")
    assert view.ended


@pytest.mark.parametrize("late", [True, False], ids=["it does not come back", "its node lets the pod fail"])
def test_container_restart_uses_no_disruption_budget(*, late: bool) -> None:
    away = restarting().pod(1, running=False, ready=False).with_spec(recovery={"maxDisruptions": 0})
    end = Exit(ago(1), RESTART_CODE, "Error", "the container restarts for attempt 2")
    ended = away.with_status(attempt_start_time=ago(61)) if late else away.pod(1, phase="Failed", ended=True, exit=end)
    status = act(ended).status
    assert (status.attempt, status.finished) == (3, False)


def test_node_lost_during_container_restart_is_detected() -> None:
    lost = restarting()
    gone = AgentView(2, AgentState.RESTARTING, since=ago(200), left_at=ago(10), vanished=True)
    lost = replace(lost, agents={**(lost.agents or {}), "pod-1-1": gone})
    status = act(lost).status
    assert [status.created_in_attempt(index) for index in range(3)] == [1, 3, 1]
    # What is left of it on a node that does not answer is not waited for: its last word was that nothing runs there.
    replaced = replace(lost, status=status.evolve(backoff=Backoff())).with_agents(AgentState.WAITING)
    new = replace(the_pod(restartable(), 1), uid="pod-1-3", attempt=3)
    waiting = {uid: AgentView(3, AgentState.WAITING, since=NOW) for uid in ("pod-0-1", "pod-1-3", "pod-2-1")}
    taken = tuple(replace(each, deletion_time=NOW) if each.uid == "pod-1-1" else each for each in replaced.pods)
    whole = replace(replaced, pods=(*taken, new), agents={"pod-1-1": replace(gone, vanished=False), **waiting})
    assert not act(whole).status.awaiting_rendezvous


def test_what_ended_instead_is_reported() -> None:
    end = Exit(ago(1), 3, "Error", "no data", "fetch")
    failed = restarting().pod(1, phase="Failed", running=False, ready=False, ended=True, exit=end)
    assert "it exited before this attempt started: exit code 3: no data" in act(failed).events[0].note


def test_program_that_exits_with_restart_code_has_failed() -> None:
    failed = restartable(maxRestarts=0).reported_failed(1, exit_code=RESTART_CODE)
    status = act(failed).status
    assert (status.finished, status.restarts.failures) == (True, 1)
