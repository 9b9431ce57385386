"""What a job with a queue does: wait, start as admitted, stop and wait again."""

from dataclasses import replace
from datetime import timedelta

import pytest

from tests.support.jobs import NOW, Scene, because, job, stored, summarize
from tests.support.workloads import ADMISSION, QUEUE, Workload, workload
from trainyard.api.agent_protocol import AgentState, StopProgress
from trainyard.api.internal_status import PodGroup
from trainyard.api.reasons import Reason
from trainyard.api.scheduling import GangScheduler
from trainyard.api.status import ConditionType as C, Phase, Restarts
from trainyard.domain.decisions import (
    ChangeWorkload,
    CreateWorker,
    CreateWorkload,
    DeletePod,
    DeletePodGroups,
    DeleteWorkload,
)
from trainyard.domain.plan import plan
from trainyard.domain.state.worker_views import AgentView
from trainyard.domain.workload_changes import Activate, Adapt, PodSet, ReleaseQuota

RUNNING = job(3, **QUEUE).running().with_status(admission=ADMISSION)
EVICTED = workload().admitted().evicted()


def queued(scene: Scene) -> tuple[bool, str]:
    return summarize(plan(scene.snapshot, NOW).status.conditions)[C.QUEUED]


class TestNewJob:
    def test_waits_before_it_starts(self) -> None:
        decided = plan(job(3, **QUEUE).in_queue().snapshot, NOW)
        status = decided.status
        assert (list(decided.actions), status) == ([], stored(status))
        assert (status.phase, status.attempt, status.start_time) == (Phase.QUEUED, 1, None)
        assert (status.internal.active_since, status.internal.attempt_start_time) == (None, None)
        assert summarize(status.conditions)[C.QUEUED] == because(Reason.WAITING_FOR_QUOTA)
        assert summarize(status.conditions)[C.RUNNING] == because(Reason.WAITING_FOR_QUOTA, holds=False)

    def test_enters_its_queue_once_that_is_stored(self) -> None:
        decided = plan(job(3, **QUEUE).queued().snapshot, NOW)
        assert list(decided.actions) == [CreateWorkload((PodSet("worker", 3),))]

    @pytest.mark.parametrize(
        ("scene", "reason", "message"),
        [
            pytest.param(job(3, **QUEUE), Reason.QUEUE_UNAVAILABLE, "kueue.enabled of the chart", id="not installed"),
            pytest.param(
                job(3, **QUEUE).in_queue(readable=False),
                Reason.QUEUE_UNAVAILABLE,
                "check that Kueue is installed",
                id="no Workloads",
            ),
        ],
    )
    def test_without_kueue_is_held_and_says_so(self, scene: Scene, reason: Reason, message: str) -> None:
        decided = plan(scene.snapshot, NOW)
        assert (list(decided.actions), decided.status.phase) == ([], Phase.QUEUED)
        (event,) = decided.events
        assert (event.type, event.reason) == ("Warning", reason)
        assert message in event.note
        held = replace(scene, status=decided.status)
        assert list(plan(held.snapshot, NOW).actions) == []

    def test_with_a_queue_of_volcano_starts(self) -> None:
        scene = job(3, **QUEUE).with_gang_schedulers(GangScheduler.VOLCANO)
        decided = plan(scene.snapshot, NOW)
        assert (decided.status.queued, decided.status.internal.pod_group is None) == (False, False)
        named = job(3, scheduling={"queue": "team", "gang": "volcano"}).with_gang_schedulers(GangScheduler.VOLCANO)
        assert not plan(named.in_queue().snapshot, NOW).status.queued

    def test_names_the_gang_of_its_pods(self) -> None:
        scene = job(3, **QUEUE).with_gang_schedulers(GangScheduler.NATIVE).queued()
        group = PodGroup(scheduler=GangScheduler.NATIVE, created_in_attempt=1, min_member=3)
        assert list(plan(scene.snapshot, NOW).actions) == [CreateWorkload((PodSet("worker", 3),), group)]

    def test_without_its_gang_scheduler_asks_for_no_quota(self) -> None:
        scene = job(3, scheduling={"queue": "team", "gang": "native"})
        decided = plan(scene.in_queue().snapshot, NOW)
        assert (decided.status.reason, [each.type for each in decided.events]) == (Reason.GANG_UNAVAILABLE, ["Warning"])
        waiting = plan(scene.queued().snapshot, NOW)
        assert (list(waiting.actions), waiting.status.reason) == ([], Reason.GANG_UNAVAILABLE)
        entered = plan(scene.queued(workload(3, scene).admitted().view).snapshot, NOW)
        assert [type(action) for action in entered.actions] == [DeleteWorkload]

    def test_without_a_queue_knows_no_queue(self) -> None:
        decided = plan(job(3).in_queue().snapshot, NOW)
        assert C.QUEUED not in summarize(decided.status.conditions)
        assert any(isinstance(action, CreateWorker) for action in decided.actions)

    def test_as_elastic_asks_for_its_smallest_size(self) -> None:
        scene = job(4, **QUEUE, elastic={"minReplicas": 2, "maxReplicas": 8}).queued()
        assert list(plan(scene.snapshot, NOW).actions) == [CreateWorkload((PodSet("worker", 4, 2),))]


class TestWaitingJob:
    @pytest.mark.parametrize(
        ("given", "reason", "message"),
        [
            pytest.param(
                workload().condition("QuotaReserved", holds=False, message="insufficient quota"),
                Reason.WAITING_FOR_QUOTA,
                "waiting in the queue team: insufficient quota",
                id="no quota",
            ),
            pytest.param(
                workload().reserved(), Reason.ADMISSION_CHECKS_PENDING, "quota is reserved in cluster", id="reserved"
            ),
            pytest.param(
                workload(active=False).evicted("Deactivated", "too often"),
                Reason.QUEUE_DEACTIVATED,
                "is not active: too often",
                id="deactivated",
            ),
            pytest.param(
                workload().condition("Finished", reason="OutOfSync", message="not the same"),
                Reason.WORKLOAD_REPLACED,
                "was finished (OutOfSync: not the same)",
                id="finished by others",
            ),
        ],
    )
    def test_says_what_it_waits_for(self, given: Workload, reason: Reason, message: str) -> None:
        decided = plan(job(3, **QUEUE).queued(given.view).snapshot, NOW)
        assert (decided.status.reason, list(decided.events)) == (reason, [])
        condition = decided.status.condition(C.QUEUED)
        assert condition is not None
        assert message in condition.message

    def test_is_admitted_before_a_pod_exists(self) -> None:
        scene = job(3, **QUEUE).queued(workload().admitted().view, offer=ADMISSION)
        decided = plan(scene.snapshot, NOW)
        status = decided.status
        assert (list(decided.actions), status) == ([], stored(status))
        assert (status.internal.admission, status.phase) == (ADMISSION, Phase.PENDING)
        assert (status.internal.active_since, status.internal.attempt_start_time) == (NOW, NOW)
        assert summarize(status.conditions)[C.QUEUED] == because(Reason.ADMITTED, holds=False)
        after = plan(replace(scene, status=status).in_queue(workload().admitted().view).snapshot, NOW)
        assert [a.index for a in after.actions if isinstance(a, CreateWorker)] == [0, 1, 2]

    def test_does_not_start_from_an_unread_admission(self) -> None:
        decided = plan(job(3, **QUEUE).queued(workload().admitted().view).snapshot, NOW)
        assert (list(decided.actions), decided.requeue_after) == ([], 1.0)
        assert decided.status.queued

    def test_does_not_start_from_an_unusable_admission(self) -> None:
        scene = job(3, **QUEUE).queued(workload().admitted().view, problem="no flavor")
        assert queued(scene) == because(Reason.ADMISSION_UNUSABLE)

    def test_whose_queue_was_removed_starts(self) -> None:
        decided = plan(job(3).queued(workload().view).snapshot, NOW)
        assert (decided.status.queued, decided.status.internal.active_since) == (False, NOW)
        assert [event.reason for event in decided.events] == [Reason.QUEUE_REMOVED]


class TestRunningJob:
    @pytest.mark.parametrize(
        ("given", "reason"),
        [
            pytest.param(EVICTED, Reason.EVICTED, id="evicted"),
            pytest.param(workload(), Reason.WAITING_FOR_QUOTA, id="not admitted any more"),
            pytest.param(workload(active=False).admitted(), Reason.QUEUE_DEACTIVATED, id="deactivated"),
            pytest.param(workload(deleting=True).admitted(), Reason.WORKLOAD_REPLACED, id="being deleted"),
            pytest.param(None, Reason.WORKLOAD_REPLACED, id="deleted"),
            pytest.param(workload(uid="other").admitted(), Reason.WAITING_FOR_QUOTA, id="another one"),
            pytest.param(workload(template_hash="other").admitted(), Reason.WORKLOAD_REPLACED, id="changed"),
            pytest.param(workload(2).admitted(), Reason.WORKLOAD_REPLACED, id="more replicas than quota"),
        ],
    )
    def test_without_admission_stops_and_waits(self, given: Workload | None, reason: Reason) -> None:
        admission = ADMISSION
        if given is not None and len(given.view.pod_sets) == 1 and given.view.pod_sets[0].count == 2:
            admission = ADMISSION.evolve(pods=[ADMISSION.pods[0].evolve(count=2)])
        scene = RUNNING.with_status(admission=admission).in_queue(*([given.view] if given else []))
        decided = plan(scene.snapshot, NOW)
        status = decided.status
        assert (list(decided.actions), status.phase, status.attempt) == ([], Phase.QUEUED, 2)
        assert (status.internal.admission, status.internal.active_since) == (None, None)
        assert status.restarts == Restarts()
        assert summarize(status.conditions)[C.QUEUED] == because(reason)
        assert [event.reason for event in decided.events] == [reason]

    def test_continues_while_it_is_admitted(self) -> None:
        decided = plan(RUNNING.in_queue(workload().admitted().view).snapshot, NOW)
        assert (decided.status.phase, decided.status.attempt) == (Phase.RUNNING, 1)

    @pytest.mark.parametrize("known", [{"readable": False}, None])
    def test_continues_where_kueue_cannot_be_read(self, known: dict[str, bool] | None) -> None:
        scene = RUNNING if known is None else RUNNING.in_queue(**known)
        decided = plan(scene.snapshot, NOW)
        assert (decided.status.phase, decided.status.attempt) == (Phase.RUNNING, 1)

    def test_with_agents_stops_after_one_step(self) -> None:
        agent = AgentView(1, AgentState.RUNNING, since=NOW - timedelta(seconds=200), leave=StopProgress())
        agents = {pod.uid: agent for pod in RUNNING.pods}
        decided = plan(replace(RUNNING, agents=agents).in_queue(EVICTED.view).snapshot, NOW)
        stop = decided.status.internal.coordinated_stop
        assert stop is not None
        assert stop.reason == "the queue takes its quota back: Preempted: for another job"
        assert not decided.status.queued

    def test_that_has_succeeded_completes_although_evicted(self) -> None:
        decided = plan(RUNNING.succeeded(0, 1, 2).in_queue(EVICTED.view).snapshot, NOW)
        assert decided.status.holds(C.COMPLETE)

    def test_keeps_admission_of_fewer_workers_when_shrunk(self) -> None:
        scene = job(2, **QUEUE).running().with_status(admission=ADMISSION).in_queue(workload().admitted().view)
        scene = replace(scene, pods=tuple(replace(pod, template_hash="") for pod in scene.pods))
        stored_admission = plan(scene.snapshot, NOW).status.internal.admission
        assert stored_admission is not None
        assert [pods.count for pods in stored_admission.pods] == [2]


class TestStoppedJob:
    def test_deletes_its_pods_and_keeps_the_quota(self) -> None:
        held = replace(RUNNING, status=plan(RUNNING.in_queue(EVICTED.view).snapshot, NOW).status)
        decided = plan(held.in_queue(EVICTED.view).snapshot, NOW)
        assert list(decided.actions) == [DeletePod(pod.name, pod.uid, Reason.EVICTED) for pod in RUNNING.pods]
        ending = replace(held, pods=tuple(replace(p, deletion_time=NOW + timedelta(seconds=9)) for p in held.pods))
        assert list(plan(ending.in_queue(EVICTED.view).snapshot, NOW).actions) == []

    def test_deletes_its_pod_group(self) -> None:
        group = PodGroup(scheduler=GangScheduler.VOLCANO, created_in_attempt=1, min_member=3)
        held = plan(RUNNING.with_status(pod_group=group).in_queue(EVICTED.view).snapshot, NOW).status
        decided = plan(replace(RUNNING, status=held).in_queue(EVICTED.view).snapshot, NOW)
        assert DeletePodGroups(GangScheduler.VOLCANO) in decided.actions
        assert decided.status.internal.pod_group is None

    @pytest.mark.parametrize(
        "late", [pytest.param(None, id="no pods"), pytest.param(31, id="a lost node"), pytest.param(0, id="ended")]
    )
    def test_releases_quota_once_no_pod_runs(self, late: int | None) -> None:
        held = replace(RUNNING, status=plan(RUNNING.in_queue(EVICTED.view).snapshot, NOW).status)
        gone = NOW - timedelta(seconds=late or 0)
        pods = () if late is None else tuple(replace(p, deletion_time=gone, ended=late == 0) for p in held.pods)
        decided = plan(replace(held, pods=pods).in_queue(EVICTED.view).snapshot, NOW)
        (action,) = [each for each in decided.actions if isinstance(each, ChangeWorkload)]
        assert action.change == ReleaseQuota("Preempted", "for another job", requeued=True)
        assert action.version == EVICTED.view.resource_version


class TestSuspendedJob:
    def test_deactivates_its_workload(self) -> None:
        scene = job(3, **QUEUE, lifecycle={"suspend": True}).suspended().in_queue(workload().admitted().view)
        (action,) = plan(scene.snapshot, NOW).actions
        assert isinstance(action, ChangeWorkload)
        assert action.change == Activate(active=False)

    def test_clears_its_place_in_the_queue(self) -> None:
        scene = job(3, **QUEUE).queued(workload().view).with_spec(lifecycle={"suspend": True})
        status = plan(scene.snapshot, NOW).status
        assert (status.suspended, status.queued, status.phase) == (True, False, Phase.SUSPENDED)

    def test_activates_its_workload_before_it_resumes(self) -> None:
        scene = job(3, **QUEUE).suspended().in_queue(workload(active=False).view)
        decided = plan(scene.snapshot, NOW)
        (action,) = decided.actions
        assert isinstance(action, ChangeWorkload)
        assert (action.change, decided.status.suspended) == (Activate(active=True), True)

    def test_adapts_its_workload_before_it_resumes(self) -> None:
        inactive = workload(active=False, template_hash="old").evicted("Deactivated")
        (action,) = plan(job(3, **QUEUE).suspended().in_queue(inactive.view).snapshot, NOW).actions
        assert isinstance(action, ChangeWorkload)
        assert action.change == Adapt()

    def test_gives_quota_back_before_it_resumes(self) -> None:
        inactive = workload(active=False).admitted().evicted("Deactivated", "by the user")
        decided = plan(job(3, **QUEUE).suspended().in_queue(inactive.view).snapshot, NOW)
        (action,) = decided.actions
        assert isinstance(action, ChangeWorkload)
        assert action.change == ReleaseQuota("Deactivated", "by the user", requeued=False)
        assert decided.status.suspended

    def test_waits_again_when_it_is_resumed(self) -> None:
        status = plan(job(3, **QUEUE).suspended().in_queue(workload().view).snapshot, NOW).status
        assert (status.suspended, status.queued, status.phase) == (False, True, Phase.QUEUED)
        assert status.internal.active_since is None
