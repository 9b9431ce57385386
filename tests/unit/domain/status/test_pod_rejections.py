"""What the status says when the API server refuses an action."""

from dataclasses import replace
from datetime import timedelta

import pytest

from tests.support.jobs import NOW, Scene, because, condition, job, stored, summarize
from trainyard.api.reasons import Reason
from trainyard.api.status import ConditionType as C
from trainyard.domain.decisions import Plan
from trainyard.domain.plan import plan
from trainyard.domain.status.pod_rejections import Refusal, refused

QUOTA = Refusal(Reason.QUOTA_EXCEEDED, "exceeded quota: gpus")


def after(scene: Scene, refusal: Refusal) -> Plan:
    return refused(scene.job, plan(scene.snapshot, NOW), refusal, NOW)


@pytest.mark.parametrize(
    ("reason", "wait"),
    [
        (Reason.QUOTA_EXCEEDED, 15.0),
        (Reason.PODS_FORBIDDEN, 15.0),
        (Reason.NAME_CONFLICT, 3.0),
    ],
)
def test_reason_is_in_the_status_and_retried(reason: Reason, wait: float) -> None:
    decided = after(job(3), Refusal(reason, "no"))
    assert summarize(decided.status.conditions)[C.RUNNING] == because(reason, holds=False)
    assert (decided.requeue_after, decided.status.finished) == (wait, False)
    assert [(e.type, e.reason, e.note) for e in decided.events] == [("Warning", reason, "no")]


def test_repeated_rejection_writes_nothing() -> None:
    first = after(job(3), QUOTA)
    again = after(replace(job(3), status=stored(first.status)), QUOTA)
    assert again.status == first.status
    assert list(again.events) == []


def test_deadline_that_comes_sooner_is_kept() -> None:
    scene = job(3, lifecycle={"activeDeadlineSeconds": 7})
    assert after(scene, QUOTA).requeue_after == 7.0


def test_later_deadline_does_not_delay_the_retry() -> None:
    scene = job(3, lifecycle={"activeDeadlineSeconds": 1000})
    assert after(scene, QUOTA).requeue_after == 15.0


def test_invalid_template_fails_the_job() -> None:
    decided = after(job(3), Refusal(Reason.INVALID_TEMPLATE, "containers[0].image: Required value"))
    failed = decided.status.condition(C.FAILED)
    assert failed is not None
    assert failed.reason == Reason.INVALID_TEMPLATE
    assert failed.message == "spec.template is not a valid pod: containers[0].image: Required value"
    assert list(decided.actions) == []


def test_invalid_pod_may_come_from_a_role() -> None:
    scene = job(3, framework="tensorflow", roles=[{"name": "chief"}])
    failed = after(scene, Refusal(Reason.INVALID_TEMPLATE, "volumes[0]: Required value")).status.condition(C.FAILED)
    assert failed is not None
    assert failed.message.startswith("spec.template with the fields of spec.roles is not a valid pod: volumes[0]")


OVER = [
    job(3).running().finished(),
    job(3, lifecycle={"cleanPods": "All"})
    .running()
    .finished(C.FAILED)
    .with_conditions(condition(C.STALLED, reason="It")),
    job(3, lifecycle={"suspend": True}).running().suspended(),
    job(3, lifecycle={"ttlSecondsAfterFinished": 1}).finished(seconds_ago=5),
]
NO_RIGHT = Refusal(Reason.PERMISSION_DENIED, "cannot delete resource")


@pytest.mark.parametrize("scene", OVER)
@pytest.mark.parametrize("reason", [Reason.PERMISSION_DENIED, Reason.PODS_FORBIDDEN, Reason.INVALID_TEMPLATE])
def test_refused_deletion_is_reported_and_changes_nothing_else(scene: Scene, reason: Reason) -> None:
    before = scene.job.status
    decided = after(scene, Refusal(reason, "no"))
    others = summarize(before.conditions) | {C.STALLED: because(reason)}
    assert summarize(decided.status.conditions) == others
    assert (decided.status.phase, decided.requeue_after) == (before.phase, 15.0)
    assert [(e.type, e.reason, e.note) for e in decided.events] == [("Warning", reason, "no")]


@pytest.mark.parametrize("scene", OVER)
def test_repeated_deletion_rejection_writes_nothing(scene: Scene) -> None:
    first = after(scene, NO_RIGHT)
    again = replace(scene, status=stored(first.status))
    later = NOW + timedelta(minutes=1)
    decided = refused(again.job, plan(again.snapshot, later), NO_RIGHT, later)
    assert decided.status == first.status
    assert list(decided.events) == []


@pytest.mark.parametrize("scene", OVER[:3])
def test_granted_permission_resumes_all_but_failed_jobs(scene: Scene) -> None:
    first = after(scene, NO_RIGHT)
    again = replace(scene, status=stored(first.status))
    holds, reason = summarize(plan(again.snapshot, NOW).status.conditions)[C.STALLED]
    failed = scene.status.condition(C.FAILED)
    if failed is not None and failed.status == "True":
        assert (holds, reason) == because(failed.reason)
    else:
        assert (holds, reason) == because(
            Reason.JOB_FINISHED if scene.status.finished else Reason.SUSPENDED, holds=False
        )


@pytest.mark.parametrize(
    ("message", "events"),
    [
        ('pods "train-worker-2-1" is forbidden: exceeded quota: gpus, used: gpu=7, limited: gpu=8', 0),
        ('pods "train-worker-0-1" is forbidden: exceeded quota: team, used: cpu=4, limited: cpu=8', 1),
    ],
    ids=["another worker and amount", "another quota"],
)
def test_another_obstacle_is_another_event(message: str, events: int) -> None:
    first = 'pods "train-worker-0-1" is forbidden: exceeded quota: gpus, used: gpu=4, limited: gpu=8'
    seen = after(job(3), Refusal(Reason.QUOTA_EXCEEDED, first))
    again = after(replace(job(3), status=stored(seen.status)), Refusal(Reason.QUOTA_EXCEEDED, message))
    assert [event.note for event in again.events] == [message] * events


def test_expected_rejection_has_no_event() -> None:
    decided = after(job(3), Refusal(Reason.NAME_CONFLICT, "no", expected=True))
    assert summarize(decided.status.conditions)[C.RUNNING] == because(Reason.NAME_CONFLICT, holds=False)
    assert list(decided.events) == []
