"""A worker beside parameter servers fails and returns alone; the chief and the servers restart the group."""

from dataclasses import replace
from typing import Any

import pytest

from tests.support.jobs import NOW, Scene, job, stored
from trainyard.api.reasons import Reason
from trainyard.api.status import ConditionType as C, Phase
from trainyard.domain.decisions import CreateWorker, DeletePod, Plan, StopPod
from trainyard.domain.plan import plan
from trainyard.domain.state.worker_views import PodView, RankProgress, WorkerReport

CHIEF, PS, EVALUATOR = 10_000, 11_000, 12_000
ROLES = [{"name": "chief"}, {"name": "ps"}, {"name": "evaluator"}]


def training(**fields: Any) -> Scene:
    return job(2, framework="tensorflow", roles=ROLES, **fields).running()


def act(scene: Scene) -> Plan:
    made = plan(scene.snapshot, NOW)
    assert made.status == stored(made.status)
    return made


@pytest.mark.parametrize(
    ("scene", "why"),
    [
        pytest.param(
            training().deleted(1), "pod train-worker-1-1 on node1: Deleted: the pod was deleted", id="deleted"
        ),
        pytest.param(training().disrupted(1), "pod train-worker-1-1 on node1: PreemptionByScheduler", id="preempted"),
        pytest.param(training().rejected(1), "pod train-worker-1-1 on node9: UnexpectedAdmissionError", id="rejected"),
        pytest.param(training().gone(1), "its pod is gone", id="gone"),
    ],
)
def test_lost_worker_gets_a_new_pod_alone(scene: Scene, why: str) -> None:
    first = act(scene)
    assert (first.status.attempt, first.status.restarts.disruptions, first.actions) == (1, 1, ())
    (event,) = first.events
    assert (event.type, event.reason) == ("Warning", Reason.WORKER_DISRUPTED)
    assert event.note.startswith(f"worker 1 of attempt 1 was lost: {why}")
    after = replace(scene, status=first.status)
    if "gone" not in why:
        # The pod of the same host name ends first.
        waiting = act(after)
        assert [type(each) for each in waiting.actions] == ([] if scene.pods[1].deletion_time else [DeletePod])
        after = replace(after, pods=tuple(pod for pod in after.pods if pod.index != 1))
    second = act(after)
    assert second.actions == [CreateWorker(1, 1, 2, 1)]
    assert second.status.phase is Phase.RUNNING


def test_second_loss_has_another_name() -> None:
    scene = training().gone(1)
    scene = replace(scene, status=act(scene).status)
    lost_again = act(replace(scene, status=act(scene).status))
    assert lost_again.actions == [CreateWorker(1, 1, 2, 1)], "it does not exist yet"
    pod = replace(training().pods[1], name="train-worker-1-1-r1", uid="new", recreated=1)
    there = replace(scene, pods=(*scene.pods, pod))
    there = replace(there, status=act(there).status)
    assert act(there).status.internal.recreated == there.status.internal.recreated
    for lost in (there.gone(1), there.deleted(1)):
        assert act(lost).status.recreated(1) == 2


@pytest.mark.parametrize("index", [CHIEF, PS])
def test_lost_chief_or_server_restarts_the_group(index: int) -> None:
    made = act(training().gone(index))
    assert (made.status.attempt, made.status.internal.recreated) == (2, [])
    assert f"{'chief' if index == CHIEF else 'ps'} 0 of attempt 1: its pod is gone" in made.events[0].note


@pytest.mark.parametrize("index", [1, EVALUATOR])
def test_container_that_restarts_changes_nothing(index: int) -> None:
    scene = training().pod(index, running=False, ready=False, container_restarts=3)
    made = act(scene)
    assert (made.status.attempt, made.status.phase, list(made.actions)) == (1, Phase.RUNNING, [])
    role = "worker" if index == 1 else "evaluator"
    assert [each.restarts for each in made.status.roles if each.name == role] == [3]


def test_endless_restarts_fail_the_job() -> None:
    scene = training(recovery={"maxRestarts": 2})
    assert act(scene.pod(1, container_restarts=2)).status.phase is Phase.RUNNING
    made = act(scene.pod(1, container_restarts=3))
    failed = made.status.condition(C.FAILED)
    assert failed is not None
    assert (failed.reason, "exited with an error 3 times" in failed.message) == (Reason.RESTARTS_EXHAUSTED, True)


def test_too_many_losses_fail_the_job() -> None:
    made = act(training(recovery={"maxDisruptions": 0}).gone(0))
    assert (made.status.phase, made.status.reason) == (Phase.FAILED, Reason.DISRUPTIONS_EXHAUSTED)


def test_chief_decides_about_success() -> None:
    made = act(training().succeeded(CHIEF))
    complete = made.status.condition(C.COMPLETE)
    assert complete is not None
    assert (complete.message, made.status.ready) == ("chief 0 succeeded", "5/5")


def test_workers_do_not_decide_beside_servers() -> None:
    assert act(training().succeeded(0, 1)).status.phase is Phase.RUNNING


def test_new_attempt_forgets_lost_pods() -> None:
    scene = training().gone(1)
    scene = replace(scene, status=act(scene).status).gone(CHIEF)
    restarted = act(scene).status
    assert (restarted.attempt, restarted.recreated(1)) == (2, 0)


def test_status_shows_roles() -> None:
    made = act(training())
    assert [(each.name, each.ready_replicas, each.replicas) for each in made.status.roles] == [
        ("worker", 2, 2),
        ("chief", 1, 1),
        ("ps", 1, 1),
        ("evaluator", 1, 1),
    ]
    assert (made.status.ready, made.status.replicas) == ("5/5", 2)
    assert made.status.selector.endswith(",trainyard.dev/role=worker")
    assert act(job(2).running()).status.roles == []


def recreated(number: int) -> PodView:
    """The pod of worker 1 that was created again so often."""
    return replace(training().pods[1], name=f"train-worker-1-1-r{number}", uid=f"new-{number}", recreated=number)


@pytest.mark.parametrize("attempt", [1, 3])
def test_new_operator_adopts_pods_created_again(attempt: int) -> None:
    """The status is older: from a backup, or never stored."""
    pods = training().running(attempt).gone(1).pods
    pods = tuple(pod for pod in pods if pod.attempt == attempt)
    again = replace(recreated(2), attempt=attempt, name=f"train-worker-1-{attempt}-r2")
    scene = replace(training(), pods=(*pods, again))
    while (made := act(scene)).status != scene.status:
        assert not made.actions, "it disturbs no member that runs"
        scene = replace(scene, status=made.status)
    assert (scene.status.attempt, scene.status.recreated(1)) == (attempt, 2)
    assert (scene.status.restarts.disruptions, [*made.actions]) == (0, [])


@pytest.mark.parametrize(
    "forged",
    [
        pytest.param(recreated(1), id="beside a worker that runs"),
        pytest.param(recreated(999_999_999), id="with an absurd number"),
        pytest.param(replace(recreated(1), index=CHIEF, name="train-chief-0-1-r1"), id="of a chief"),
    ],
)
def test_forged_pod_is_not_adopted(forged: PodView) -> None:
    scene = training() if forged.recreated == 1 else training().gone(1)
    made = act(replace(scene, pods=(*scene.pods, forged)))
    assert made.status.recreated(forged.index) in {0, 1}
    assert Reason.ATTEMPT_ADOPTED not in {event.reason for event in made.events}


def test_steps_of_lone_members_do_not_count() -> None:
    steps = {CHIEF: 9, EVALUATOR: 4}
    reports = [WorkerReport(1, index, (RankProgress(index, step, "train"),)) for index, step in steps.items()]
    progress = plan(replace(training().snapshot, reports=reports), NOW).status.progress
    assert progress is not None
    assert progress.step == 9


@pytest.mark.parametrize("outcome", [C.COMPLETE, C.FAILED])
def test_servers_stop_though_pods_are_kept(outcome: C) -> None:
    """They never end by themselves; the chief does."""
    scene = training(lifecycle={"cleanPods": "None"}).pod(EVALUATOR, stop_requested=True)
    ended = plan(scene.finished(outcome).snapshot, NOW)
    assert [(type(each), each.name) for each in ended.actions if isinstance(each, StopPod)] == [
        (StopPod, "train-worker-0-1"),
        (StopPod, "train-worker-1-1"),
        (StopPod, "train-ps-0-1"),
    ]
    assert len(ended.actions) == 3
