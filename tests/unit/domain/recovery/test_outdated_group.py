"""A group whose pods have an earlier template than the job: an edit around a suspension that the operator did not see."""

from dataclasses import replace

import pytest

from tests.support.elastic_jobs import scaling_up
from tests.support.jobs import NOW, SUPERVISED, Scene, job, summarize
from tests.support.reconciles import act
from trainyard.api.agent_protocol import AgentState, StopProgress
from trainyard.api.reasons import Reason
from trainyard.api.status import ConditionType as C, Phase, Restarts
from trainyard.domain.decisions import DeletePod
from trainyard.domain.plan import plan
from trainyard.domain.state.job_template import template_hash
from trainyard.domain.state.worker_views import AgentView

EDITED = {"spec": {"containers": [{"name": "main", "image": "trainer:2", "command": ["python", "train.py"]}]}}


def hashed(scene: Scene, *indexes: int) -> Scene:
    """Let the pods of these workers, or of all, have the hash and the generation of the job as it is."""
    current, generation = template_hash(scene.spec), scene.generation
    pods = [
        replace(pod, template_hash=current, generation=generation) if not indexes or pod.index in indexes else pod
        for pod in scene.pods
    ]
    return replace(scene, pods=tuple(pods))


def running() -> Scene:
    return hashed(job(3, template=SUPERVISED).running().with_agents())


def edited(scene: Scene) -> Scene:
    return scene.with_spec(template=EDITED)


MIXED = hashed(edited(running()), 1)


@pytest.mark.parametrize(
    "scene",
    [
        pytest.param(edited(running()), id="while the operator was away"),
        pytest.param(running().with_spec(processesPerReplica=2), id="the number of processes"),
        pytest.param(MIXED, id="two templates in one group"),
        pytest.param(edited(running()).failed(1), id="as a worker fails"),
        pytest.param(edited(running()).disrupted(1), id="as a worker is disrupted"),
        pytest.param(edited(running()).gone(1), id="as a pod is gone"),
        pytest.param(edited(running()).succeeded(0, 1, 2), id="as all workers succeeded"),
        pytest.param(edited(running()).with_spec(replicas=5), id="as the job is scaled"),
    ],
)
def test_outdated_group_restarts_uncharged(scene: Scene) -> None:
    status = plan(scene.snapshot, NOW).status
    assert (status.phase, status.attempt, status.internal.group) == (Phase.RESTARTING, 2, None)
    assert (status.restarts, status.restart_count, status.last_failure) == (Restarts(), 0, None)
    assert summarize(status.conditions)[C.RESTARTING][1] == Reason.TEMPLATE_CHANGED


def test_outdated_pods_end_before_new_ones_start() -> None:
    scene = edited(running())
    decided = plan(scene.snapshot, NOW)
    assert [(event.type, event.reason) for event in decided.events] == [("Normal", Reason.TEMPLATE_CHANGED)]
    after = plan(replace(scene, status=decided.status).snapshot, NOW)
    assert [type(action) for action in after.actions] == [DeletePod] * 3


@pytest.mark.parametrize(
    "scene",
    [
        pytest.param(job(3, template=SUPERVISED).running().with_agents(), id="pods of an earlier release"),
        pytest.param(hashed(job(3, template=SUPERVISED).running().with_agents(), 1), id="some of an earlier release"),
        pytest.param(running().with_spec(recovery={"maxRestarts": 1}), id="another field"),
        pytest.param(replace(edited(running()), generation=1), id="a CRD with other defaults"),
    ],
)
def test_group_with_current_template_continues(scene: Scene) -> None:
    decided = plan(scene.snapshot, NOW)
    assert (decided.status.attempt, decided.status.phase) == (1, Phase.RUNNING)


def test_joining_workers_with_another_template_restart_all() -> None:
    scene = hashed(scaling_up(), 0, 1, 2)
    scene = hashed(edited(scene), *(pod.index for pod in scene.pods if pod.index > 2))
    attempt = scene.status.attempt
    status = act(scene, 90).status
    assert (status.attempt, status.internal.joining, status.internal.group) == (attempt + 1, None, None)


def test_ranks_save_before_the_new_group() -> None:
    leaving = {f"pod-{i}-1": AgentView(1, AgentState.RUNNING, since=NOW, leave=StopProgress()) for i in range(3)}
    decided = plan(replace(edited(running()), agents=leaving).snapshot, NOW)
    assert decided.status.attempt == 1
    assert decided.status.stopping is not None
    assert decided.status.stopping.reason == "the job was suspended, changed and resumed"


def test_completion_of_an_earlier_template_is_none() -> None:
    scene = edited(running()).succeeded(0, 1, 2)
    status = plan(scene.snapshot, NOW).status
    assert not status.finished
