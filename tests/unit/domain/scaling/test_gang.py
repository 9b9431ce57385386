"""The gang of a group: which scheduler places it, how many members of it at least, and when its PodGroup comes and goes."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from tests.support.elastic_jobs import ELASTIC
from tests.support.jobs import SUPERVISED, TEMPLATE, Scene, condition, job, stored, summarize
from tests.support.reconciles import act, decided, names, running
from tests.support.workloads import ADMISSION, QUEUE, workload
from trainyard.api.internal_status import Group, PodGroup
from trainyard.api.reasons import Reason
from trainyard.api.scheduling import GangScheduler as G
from trainyard.api.status import ConditionType as C, Phase
from trainyard.domain.decisions import Action, CreatePodGroup, CreateWorker, DeletePodGroups

FROM_TWO = {**ELASTIC, "minReplicas": 2}
CHIEF_AND_SERVER = [{"name": "chief"}, {"name": "ps", "replicas": 2}]


def gang_of(scene: Scene) -> PodGroup | None:
    """Return what the next reconcile stores."""
    return decided(scene).status.internal.pod_group


def kinds(actions: Sequence[Action]) -> list[type]:
    return [type(action) for action in actions]


def templated(**fields: Any) -> dict[str, Any]:
    return {"spec": {**TEMPLATE["spec"], **fields}}


def grouped(workers: int = 4, *, attempt: int = 1, **fields: Any) -> Scene:
    """Return a job whose PodGroup is stored, and whose pods have yet to be created."""
    scene = job(workers, **fields).with_gang_schedulers(G.NATIVE).started(attempt)
    return scene.with_status(
        pod_group=PodGroup(scheduler=G.NATIVE, created_in_attempt=attempt, min_member=len(scene.job.members(workers)))
    )


@pytest.mark.parametrize(
    ("found", "permitted", "spec", "chosen"),
    [
        ((), (), {}, None),
        ((G.NATIVE,), (), {}, G.NATIVE),
        ((G.VOLCANO, G.NATIVE), (G.NATIVE, G.VOLCANO), {}, G.NATIVE),
        ((G.VOLCANO,), (G.NATIVE, G.VOLCANO), {}, G.VOLCANO),
        ((G.NATIVE,), (), {"scheduling": {"gang": "none"}}, None),
        ((G.NATIVE, G.COSCHEDULING), (), {"scheduling": {"gang": "coscheduling"}}, G.COSCHEDULING),
        ((G.NATIVE, G.VOLCANO), (), {"template": templated(schedulerName="volcano")}, G.VOLCANO),
        ((G.NATIVE, G.VOLCANO), (), {"template": templated(schedulerName="default-scheduler")}, G.NATIVE),
        ((G.NATIVE, G.VOLCANO), (), {"template": templated(schedulerName="yunikorn")}, None),
        ((G.NATIVE,), (), {"template": templated(schedulingGroup={"podGroupName": "mine"})}, None),
    ],
    ids=[
        "nothing is permitted",
        "auto takes what there is",
        "auto takes the first permitted",
        "auto takes the first that exists",
        "none",
        "the job names another",
        "auto follows the template's scheduler",
        "auto with the default scheduler by name",
        "auto knows no gang of that scheduler",
        "the template has a group",
    ],
)
def test_chosen_scheduler(found: Any, permitted: Any, spec: Any, chosen: G | None) -> None:
    gang = gang_of(job(4, **spec).with_gang_schedulers(*found, permitted=permitted))
    assert (gang.scheduler if gang else None) == chosen


@pytest.mark.parametrize(
    ("spec", "agents", "members"),
    [
        ({}, False, 4),
        ({"framework": "tensorflow", "roles": CHIEF_AND_SERVER}, False, 7),
        ({"elastic": FROM_TWO, "template": SUPERVISED}, True, 2),
        ({"elastic": {"sizes": [2, 4]}, "template": SUPERVISED}, True, 2),
        ({"elastic": FROM_TWO, "framework": "tensorflow", "roles": CHIEF_AND_SERVER, "template": SUPERVISED}, True, 5),
        # Without agents, the group cannot go on with fewer workers.
        ({"elastic": FROM_TWO}, False, 4),
    ],
    ids=["workers", "roles", "elastic", "sizes", "elastic with roles", "elastic without agents"],
)
def test_smallest_gang(spec: Any, agents: bool, members: int) -> None:  # noqa: FBT001 - a column of the table
    scene = job(4, **spec).with_gang_schedulers(G.NATIVE)
    gang = gang_of(replace(scene, agents={}) if agents else scene)
    assert gang is not None
    assert gang.min_member == members


def test_single_worker_needs_a_gang_for_its_queue() -> None:
    assert gang_of(job(1).with_gang_schedulers(G.VOLCANO)) is None
    assert gang_of(job(1, scheduling={"queue": "research"}).with_gang_schedulers(G.VOLCANO)) is not None


def test_auto_takes_volcano_for_a_queue() -> None:
    found = job(2, scheduling={"queue": "research"}).with_gang_schedulers(G.NATIVE, G.VOLCANO)
    assert gang_of(found) == PodGroup(scheduler=G.VOLCANO, created_in_attempt=1, min_member=2, queue="research")


def test_job_in_queue_of_kueue_has_any_gang() -> None:
    scene = job(3, **QUEUE).with_gang_schedulers(G.NATIVE, G.VOLCANO).with_status(admission=ADMISSION)
    known = replace(scene, has_service=True).in_queue(workload().admitted().view)
    assert gang_of(known) == PodGroup(scheduler=G.NATIVE, created_in_attempt=1, min_member=3)
    counts = ADMISSION.evolve(pods=[ADMISSION.pods[0].evolve(count=1)])
    one = job(1, **QUEUE).with_gang_schedulers(G.VOLCANO).with_status(admission=counts)
    made = decided(one.in_queue(workload(1).admitted().view))
    assert (made.status.internal.pod_group, CreateWorker in kinds(made.actions)) == (None, True)


def test_pod_group_precedes_its_pods() -> None:
    first = decided(job(2).with_gang_schedulers(G.NATIVE))
    assert first.actions == ()
    assert first.status.internal.pod_group == PodGroup(scheduler=G.NATIVE, created_in_attempt=1, min_member=2)
    scene = act(job(2).with_gang_schedulers(G.NATIVE))
    assert kinds(decided(replace(scene, has_service=True)).actions) == [CreatePodGroup, CreateWorker, CreateWorker]


def test_without_gang_schedulers_nothing_is_added() -> None:
    plan = decided(job(2).started())
    assert CreatePodGroup not in kinds(plan.actions)
    assert plan.status.internal.pod_group is None


def test_killed_operator_repeats_the_pod_group() -> None:
    scene = grouped(3)
    half = replace(scene, pods=scene.created().pods[:1], has_service=True)
    assert kinds(decided(half).actions) == [CreatePodGroup, CreateWorker, CreateWorker]
    assert gang_of(half) == scene.status.internal.pod_group


def test_complete_group_makes_no_requests() -> None:
    scene = running(3).with_gang_schedulers(G.NATIVE)
    pod_group = PodGroup(scheduler=G.NATIVE, created_in_attempt=1, min_member=3)
    assert decided(scene.with_status(pod_group=pod_group)).actions == []
    assert gang_of(scene) is None, "its pods were created without a gang"


def test_replacement_keeps_the_gang() -> None:
    scene = running(3).with_gang_schedulers(G.NATIVE)
    pod_group = PodGroup(scheduler=G.NATIVE, created_in_attempt=1, min_member=3)
    scene = act(scene.with_status(pod_group=pod_group).gone(1))
    assert scene.status.internal.group is not None
    made = decided(scene)
    assert [a for a in made.actions if not isinstance(a, CreatePodGroup)] == [CreateWorker(1, 2, 3)]
    assert kinds(made.actions)[0] is CreatePodGroup
    assert made.status.pod_group == pod_group


def test_new_group_gets_a_new_gang() -> None:
    scene = grouped(2).created().with_gang_schedulers(G.NATIVE)
    scene = scene.with_status(pod_group=PodGroup(scheduler=G.NATIVE, created_in_attempt=1, min_member=2))
    scene = act(scene.running().with_status(pod_group=scene.status.internal.pod_group).failed(0))
    assert (scene.status.attempt, scene.status.internal.group) == (2, None)
    removed = decided(scene, 3600)
    assert DeletePodGroups(G.NATIVE) in removed.actions
    assert CreateWorker not in kinds(removed.actions), "the status still names the earlier PodGroup"
    assert removed.status.internal.pod_group is None
    scene = act(act(scene, 3600), 3600)
    assert scene.status.pod_group == PodGroup(scheduler=G.NATIVE, created_in_attempt=2, min_member=2)
    assert names(act(scene, 3600)) == ["0-2", "1-2"]


def test_waiting_group_leaves_its_queue() -> None:
    """Through the delay of a release the PodGroup would hold its queue's capacity."""
    scene = grouped(2, attempt=2).with_status(
        pod_group=PodGroup(scheduler=G.VOLCANO, created_in_attempt=1, min_member=2)
    )
    backoff = scene.status.internal.backoff.evolve(not_before=decided(scene).status.start_time)
    assert DeletePodGroups(G.VOLCANO) in decided(scene.with_status(backoff=backoff), -100).actions


@pytest.mark.parametrize("end", ["suspended", "complete", "failed"])
def test_pod_group_ends_with_the_job(end: str) -> None:
    scene = running(2).with_status(pod_group=PodGroup(scheduler=G.VOLCANO, created_in_attempt=1, min_member=2))
    scene = {
        "suspended": scene.with_spec(lifecycle={"suspend": True}).suspended(),
        "complete": scene.succeeded(0, 1).finished(),
        "failed": scene.failed(0).finished(C.FAILED),
    }[end]
    made = decided(scene)
    assert DeletePodGroups(G.VOLCANO) in made.actions
    assert made.status.internal.pod_group is None
    rest = replace(scene, status=stored(made.status))
    assert DeletePodGroups not in kinds(decided(rest).actions)


@pytest.mark.parametrize(
    ("permitted", "named", "part"),
    [
        ((), "volcano", "gangs.schedulers of the operator's chart does not list"),
        ((G.VOLCANO,), "volcano", "the cluster had no PodGroups of Volcano"),
        ((G.NATIVE,), "native", "scheduling.k8s.io, off by default"),
    ],
)
def test_missing_scheduler_holds_the_job(permitted: Any, named: str, part: str) -> None:
    scene = replace(job(2, scheduling={"gang": named}).started(), has_service=True)
    scene = replace(scene, gang_schedulers=replace(scene.gang_schedulers, permitted=permitted))
    made = decided(scene)
    assert [*made.actions] == []
    assert summarize(made.status.conditions)["Stalled"] == (True, Reason.GANG_UNAVAILABLE)
    assert made.status.phase is Phase.PENDING
    stalled = made.status.condition(C.STALLED)
    assert stalled is not None
    assert part in stalled.message
    assert [(event.type, event.reason) for event in made.events] == [("Warning", Reason.GANG_UNAVAILABLE)]
    again = decided(replace(scene, status=stored(made.status)))
    assert again.events == []
    assert again.requeue_after is None, "nothing is repeated"


def test_two_causes_of_stalled_are_no_news_twice() -> None:
    scene = job(3, scheduling={"gang": "volcano"}, parallelism={"tensor": 2}).started()
    made = decided(scene)
    assert [event.reason for event in made.events] == [Reason.INVALID_SPEC]
    assert decided(replace(scene, status=stored(made.status))).events == []


def test_found_scheduler_releases_the_job() -> None:
    stalled = condition(C.STALLED, reason=Reason.GANG_UNAVAILABLE)
    scene = job(2, scheduling={"gang": "volcano"}).started().with_conditions(stalled).with_gang_schedulers(G.VOLCANO)
    scene = act(scene)
    assert not decided(scene).status.holds(C.STALLED)
    assert CreatePodGroup in kinds(decided(scene).actions)


def test_missing_scheduler_does_not_end_a_group() -> None:
    scene = running(3, scheduling={"gang": "volcano"})
    assert decided(scene).actions == []
    assert not decided(scene).status.holds(C.STALLED)


def test_suspended_job_of_missing_scheduler_is_not_held() -> None:
    scene = job(2, scheduling={"gang": "volcano"}, lifecycle={"suspend": True}).suspended()
    assert not decided(scene).status.holds(C.STALLED)


def test_size_changed_before_pods_gets_another_gang() -> None:
    scene = replace(grouped(4).with_spec(replicas=2), has_service=True)
    made = decided(scene)
    assert (kinds(made.actions), made.status.internal.pod_group) == ([DeletePodGroups], None)
    scene = replace(scene, status=stored(made.status))
    assert gang_of(scene) == PodGroup(scheduler=G.NATIVE, created_in_attempt=1, min_member=2)


def test_lost_status_finds_the_gang_again() -> None:
    pods = job(3).created(attempt=4).pods
    scene = replace(job(3).with_gang_schedulers(G.NATIVE), pods=pods[:2], has_service=True)
    scene = act(act(scene))
    assert scene.status.pod_group == PodGroup(scheduler=G.NATIVE, created_in_attempt=4, min_member=3)
    assert kinds(decided(scene).actions) == [CreatePodGroup, CreateWorker]


@given(
    attempt=st.integers(1, 5),
    created=st.integers(1, 5),
    kept=st.booleans(),
    present=st.sets(st.integers(0, 3)),
)
def test_pods_are_created_only_after_their_gang(attempt: int, created: int, kept: bool, present: set[int]) -> None:  # noqa: FBT001
    scene = grouped(4, attempt=attempt)
    pod_group = PodGroup(scheduler=G.NATIVE, created_in_attempt=min(created, attempt), min_member=4)
    scene = scene.with_status(pod_group=pod_group)
    if kept:
        scene = scene.with_status(group=Group(created_in_attempt=attempt, size=4))
    whole = scene.created(attempt).pods
    made = decided(replace(scene, pods=tuple(pod for pod in whole if pod.index in present), has_service=True))
    order = kinds(made.actions)
    if CreateWorker in order:
        assert order.index(CreatePodGroup) < order.index(CreateWorker)
        assert scene.status.pod_group is not None
