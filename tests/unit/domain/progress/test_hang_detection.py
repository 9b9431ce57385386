"""What a job says of hangs where its program reports no progress."""

from dataclasses import replace

import pytest

from tests.support.jobs import NOW, SUPERVISED, Scene, ago, job, stored
from trainyard.api.agent_protocol import AgentState
from trainyard.api.progress import Progress
from trainyard.api.reasons import Reason
from trainyard.api.status import ConditionType as C, TrainingJobStatus
from trainyard.domain.plan import plan
from trainyard.domain.state.worker_views import AgentView

RUNS = job(2, template=SUPERVISED).running(seconds_ago=400).with_agents()


def idle(scene: Scene, *indexes: int, attempt: int = 1) -> Scene:
    """Let the agents of these workers report that their ranks do nothing."""
    views = {
        pod.uid: AgentView(attempt, AgentState.RUNNING, since=ago(200), idle=True)
        for pod in scene.pods
        if pod.index in indexes
    }
    return replace(scene, agents={**(scene.agents or {}), **views})


def after(scene: Scene) -> TrainingJobStatus:
    return stored(plan(scene.snapshot, NOW).status)


def events(scene: Scene) -> list[str]:
    return [event.reason for event in plan(scene.snapshot, NOW).events]


def continued(scene: Scene, status: TrainingJobStatus) -> Scene:
    return replace(scene, status=status)


def test_missing_progress_is_explained() -> None:
    limited = after(RUNS).condition(C.HANG_DETECTION_LIMITED)
    assert limited is not None
    assert (limited.status, limited.reason) == ("True", "ProgressNotReported")
    assert "call trainyard_agent.progress(step) after each step" in limited.message
    assert events(RUNS) == ["ProgressNotReported"]
    assert events(continued(RUNS, after(RUNS))) == []


def test_program_gets_time_for_its_first_report() -> None:
    young = job(2, template=SUPERVISED).running(seconds_ago=100).with_agents()
    decided = plan(young.snapshot, NOW)
    assert decided.status.condition(C.HANG_DETECTION_LIMITED) is None
    assert decided.requeue_after == 200


@pytest.mark.parametrize(
    "scene",
    [
        pytest.param(RUNS.with_status(progress=Progress(step=3, updated_at=NOW)), id="reports progress"),
        pytest.param(RUNS.with_status(progress=Progress(phase="compile", updated_at=NOW)), id="reports a phase"),
        pytest.param(job(2).running(seconds_ago=400), id="has no agent"),
        pytest.param(
            job(2, template=SUPERVISED, recovery={"hangTimeoutSeconds": 0}).running(seconds_ago=400).with_agents(),
            id="is not to be watched",
        ),
    ],
)
def test_nothing_is_missing_where(scene: Scene) -> None:
    assert after(idle(scene, 0, 1) if scene.agents else scene).condition(C.HANG_DETECTION_LIMITED) is None
    assert not after(scene).holds(C.HANG_SUSPECTED)


def test_limit_of_zero_removes_both_conditions() -> None:
    before = after(idle(RUNS, 0, 1))
    assert before.holds(C.HANG_SUSPECTED)
    off = job(2, template=SUPERVISED, recovery={"hangTimeoutSeconds": 0}).running(seconds_ago=400).with_agents()
    status = after(replace(idle(off, 0, 1), status=before))
    assert [status.condition(kind) for kind in (C.HANG_SUSPECTED, C.HANG_DETECTION_LIMITED)] == [None, None]


def test_later_progress_clears_both_conditions() -> None:
    before = after(idle(RUNS, 0, 1))
    assert before.holds(C.HANG_SUSPECTED)
    now = after(continued(RUNS, before).with_status(progress=Progress(step=1, updated_at=NOW)))
    assert not now.holds(C.HANG_SUSPECTED)
    assert not now.holds(C.HANG_DETECTION_LIMITED)


def test_hang_is_suspected_once_all_workers_are_idle() -> None:
    assert not after(idle(RUNS, 0)).holds(C.HANG_SUSPECTED)
    scene = idle(RUNS, 0, 1)
    status = after(scene)
    suspected = status.condition(C.HANG_SUSPECTED)
    assert suspected is not None
    assert (suspected.status, suspected.reason) == ("True", "RanksIdle")
    assert "no rank of 2 workers uses its CPU" in suspected.message
    assert status.reason == Reason.RANKS_IDLE, "kubectl get shows it"
    assert "RanksIdle" in events(scene)
    assert events(continued(scene, status)) == []
    assert status.attempt == 1, "nothing is restarted"


@pytest.mark.parametrize(
    "scene",
    [
        pytest.param(idle(RUNS, 0, 1, attempt=2), id="of another attempt"),
        pytest.param(idle(RUNS, 0, 1).disconnected(1), id="its agent is away"),
    ],
)
def test_idleness_is_not_known(scene: Scene) -> None:
    assert not after(scene).holds(C.HANG_SUSPECTED)


def test_working_ranks_clear_the_suspicion() -> None:
    before = after(idle(RUNS, 0, 1))
    now = after(continued(RUNS, before)).condition(C.HANG_SUSPECTED)
    assert now is not None
    assert (now.status, now.reason) == ("False", "RanksActive")


def test_restart_clears_the_suspicion() -> None:
    hung = idle(RUNS, 0, 1)
    assert not after(continued(hung, after(hung)).failed(1)).holds(C.HANG_SUSPECTED)


def test_restarted_group_hangs_before_its_first_report() -> None:
    later = job(2, template=SUPERVISED).running(attempt=2, seconds_ago=900).with_agents()
    hangs = idle(later.with_status(progress=Progress(step=3, updated_at=ago(1000))), 0, 1, attempt=2)
    assert after(hangs).holds(C.HANG_SUSPECTED)
    assert events(hangs) == ["RanksIdle"]
