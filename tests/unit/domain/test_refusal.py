"""What the status says when the API server refuses an action."""

from dataclasses import replace

import pytest

from tests.support.jobs import NOW, Scene, because, job, stored, told
from trainyard.api.reasons import Reason
from trainyard.api.status import ConditionType as C
from trainyard.domain.actions import Plan
from trainyard.domain.plan import plan
from trainyard.domain.refusal import NAMESAKE_GONE_AFTER, RETRY_AFTER, Refusal, refused

QUOTA = Refusal(Reason.QUOTA_EXCEEDED, "exceeded quota: gpus")


def after(scene: Scene, refusal: Refusal) -> Plan:
    return refused(scene.job, plan(scene.snapshot, NOW), refusal, NOW)


@pytest.mark.parametrize(
    ("reason", "wait"),
    [
        (Reason.QUOTA_EXCEEDED, RETRY_AFTER),
        (Reason.PODS_FORBIDDEN, RETRY_AFTER),
        (Reason.NAME_TAKEN, NAMESAKE_GONE_AFTER),
    ],
)
def test_reason_stands_in_the_status_and_it_is_tried_again(reason: Reason, wait: float) -> None:
    decided = after(job(3), Refusal(reason, "no"))
    assert told(decided.status.conditions)[C.RUNNING] == because(reason, holds=False)
    assert (decided.requeue_after, decided.status.finished) == (wait, False)
    assert [(e.type, e.reason, e.note) for e in decided.events] == [("Warning", reason, "no")]


def test_same_refusal_again_is_neither_an_event_nor_a_write() -> None:
    first = after(job(3), QUOTA)
    again = after(replace(job(3), status=stored(first.status)), QUOTA)
    assert again.status == first.status
    assert list(again.events) == []


def test_deadline_that_comes_sooner_is_kept() -> None:
    scene = job(3, lifecycle={"activeDeadlineSeconds": 7})
    assert after(scene, QUOTA).requeue_after == 7.0


def test_template_of_which_no_pod_can_be_made_fails_the_job() -> None:
    decided = after(job(3), Refusal(Reason.INVALID_TEMPLATE, "containers[0].image: Required value"))
    failed = decided.status.condition(C.FAILED)
    assert failed is not None
    assert failed.reason == Reason.INVALID_TEMPLATE
    assert failed.message == "no pod can be made of spec.template: containers[0].image: Required value"
    assert list(decided.actions) == []


@pytest.mark.parametrize(
    "scene", [job(3).running().finished(), job(3, lifecycle={"suspend": True}).running().suspended()]
)
def test_refused_deletion_leaves_the_status(scene: Scene) -> None:
    decided = after(scene, Refusal(Reason.PODS_FORBIDDEN, "no"))
    assert decided.status == plan(scene.snapshot, NOW).status
    assert decided.requeue_after == RETRY_AFTER
