"""Whose queue `scheduling.queue` names: one of Kueue, or one of Volcano."""

from dataclasses import replace
from typing import Any

import pytest

from tests.support.jobs import TEMPLATE, Scene, job
from tests.support.workloads import ADMISSION
from trainyard.api.internal_status import PodGroup
from trainyard.api.scheduling import GangScheduler as G
from trainyard.domain.state.gang_schedulers import GangSchedulers
from trainyard.domain.state.queue_choice import with_queue
from trainyard.domain.state.workload import queue_request

BOTH = (G.NATIVE, G.VOLCANO)
OWN_GROUP = {**TEMPLATE, "metadata": {"annotations": {"scheduling.k8s.io/group-name": "mine"}}}
OF_KUEUE, OF_VOLCANO = ("team", None), (None, "team")


def placed_by(scheduler: str) -> dict[str, Any]:
    return {"template": {"spec": {**TEMPLATE["spec"], "schedulerName": scheduler}}}


def gang(name: str, **fields: Any) -> dict[str, Any]:
    return {"scheduling": {"queue": "team", "gang": name}, **fields}


def group(queue: str | None) -> PodGroup:
    return PodGroup(scheduler=G.VOLCANO, created_in_attempt=1, min_member=2, queue=queue)


def queues(scene: Scene, *, kueue: bool, found: tuple[G, ...] = BOTH, label: str = "") -> tuple[str | None, str | None]:
    """Return the job's queue of Kueue, and that of Volcano."""
    labels = {"kueue.x-k8s.io/queue-name": label} if label else {}
    view = replace(scene.job, queue=queue_request(scene.spec.scheduling, {"labels": labels}))
    job = with_queue(view, GangSchedulers(BOTH, frozenset(found)), kueue=kueue)
    return job.queue.queue if job.queue else None, job.volcano_queue


@pytest.mark.parametrize(
    ("fields", "with_kueue", "without"),
    [
        pytest.param(gang("volcano"), OF_VOLCANO, OF_VOLCANO, id="a gang of Volcano"),
        pytest.param(gang("volcano", template=OWN_GROUP), OF_VOLCANO, OF_VOLCANO, id="and a group of its own"),
        pytest.param(gang("native"), OF_KUEUE, OF_KUEUE, id="another gang"),
        pytest.param(gang("none", **placed_by("volcano")), OF_KUEUE, OF_KUEUE, id="no gang"),
        pytest.param(gang("auto"), OF_KUEUE, OF_VOLCANO, id="nothing is set"),
        pytest.param(gang("auto", **placed_by("volcano")), OF_VOLCANO, OF_VOLCANO, id="Volcano in the template"),
        pytest.param(gang("auto", **placed_by("yunikorn")), OF_KUEUE, OF_KUEUE, id="another scheduler in it"),
        pytest.param(gang("auto", template=OWN_GROUP), OF_KUEUE, OF_KUEUE, id="a group in it"),
    ],
)
def test_queue_follows_the_gang(fields: Any, with_kueue: Any, without: Any) -> None:
    scene = job(2, **fields)
    assert (queues(scene, kueue=True), queues(scene, kueue=False)) == (with_kueue, without)


@pytest.mark.parametrize("fields", [gang("auto"), gang("auto", **placed_by("volcano"))])
def test_volcano_must_be_there(fields: Any) -> None:
    assert queues(job(2, **fields), kueue=False, found=(G.NATIVE,)) == OF_KUEUE


def test_named_gang_needs_no_volcano() -> None:
    """The job waits for its scheduler, and not for a queue that it does not mean."""
    assert queues(job(2, **gang("volcano")), kueue=True, found=()) == OF_VOLCANO


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param(gang("volcano"), ("label", "team"), id="beside a queue of Volcano"),
        pytest.param(gang("auto"), OF_KUEUE, id="the spec wins"),
        pytest.param({"scheduling": {"gang": "volcano"}}, ("label", None), id="alone"),
    ],
)
def test_label_names_a_queue_of_kueue(fields: Any, expected: Any) -> None:
    scene = job(2, **fields)
    assert queues(scene, kueue=True, label="label") == expected
    admitted = scene.with_status(admission=ADMISSION)
    assert queues(admitted, kueue=True, label="label") == expected


@pytest.mark.parametrize(
    ("scene", "kueue", "expected"),
    [
        pytest.param(
            job(2, **gang("auto", **placed_by("volcano"))).with_status(admission=ADMISSION),
            True,
            OF_KUEUE,
            id="Volcano is installed",
        ),
        pytest.param(
            job(2, **gang("auto")).with_status(pod_group=group("team")), True, OF_VOLCANO, id="Kueue is installed"
        ),
        pytest.param(job(2, **gang("auto")).with_status(pod_group=group(None)), False, OF_KUEUE, id="Kueue is removed"),
    ],
)
def test_existing_pods_keep_their_queue(scene: Scene, expected: Any, *, kueue: bool) -> None:
    assert queues(scene, kueue=kueue) == expected


def test_next_group_follows_the_rule() -> None:
    scene = job(2, **gang("auto")).with_status(pod_group=group("team"), attempt=2)
    assert queues(scene, kueue=True) == OF_KUEUE


def test_job_without_queue_stays_as_it_is() -> None:
    view = job(2, scheduling={"gang": "volcano"}).job
    assert with_queue(view, GangSchedulers(BOTH, frozenset(BOTH)), kueue=True) is view
